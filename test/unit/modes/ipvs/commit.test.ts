import { describe, expect, it } from 'vitest'
import { refuse } from '../../../support/fake-kernel/call.ts'
import { ipvsBench } from '../../../support/ipvs-rig.ts'
import { serviceOf } from '../../../support/ipvs-services.ts'
import { IS_QUICK } from '../../../support/runs.ts'

function make(schedulers?: readonly string[]) {
  const { node, start } = ipvsBench(schedulers)
  const process = () => start({}, { driftPollMs: 0 })
  return { node, rig: process(), process }
}

const GOOD = serviceOf('good', { ip: '172.30.0.1', endpoints: ['10.1.0.1'] })

describe('a scheduler that the kernel does not have', () => {
  it('costs other Services nothing, and its own only the scheduler', async () => {
    const { node, rig } = make(['rr'])
    const complaints: string[] = []
    node.afterMessage = () => complaints.push(...node.complaints())
    const odd = serviceOf('odd', { ip: '172.30.0.2', endpoints: ['10.1.0.2'], scheduler: 'mh' })
    await rig.sync([...GOOD, ...odd])
    expect(node.dump().filter(line => line.startsWith('virtual'))).toEqual([
      'virtual TCP 172.30.0.1:80 rr 0 0',
      'virtual TCP 172.30.0.2:80 rr 0 0',
    ])
    expect(rig.kinds()).toEqual(['stale', 'committed', 'synced'])
    expect(rig.reconciler.rendered?.refusals.get('ns/odd')).toMatchObject([{ value: 'mh' }])
    expect(complaints).toEqual([])
  })

  it('ends in a refusal when nothing is left to take its place', async () => {
    const { node, rig } = make(['lc'])
    const odd = serviceOf('odd', { ip: '172.30.0.2', endpoints: ['10.1.0.2'], scheduler: 'lc' })
    rig.offer([...GOOD, ...odd])
    await rig.until(() => rig.of('quarantined').length > 0)
    expect(rig.of('quarantined')).toMatchObject([{ service: 'ns/good' }])
    expect(rig.of('stale').length).toBeLessThanOrEqual(2)
    await rig.wait(100)
    expect(node.dump().filter(line => line.startsWith('virtual'))).toEqual([
      'virtual TCP 172.30.0.2:80 lc 0 0',
    ])
    expect(node.complaints()).toEqual([])
  })
})

describe('servers that another program changed a moment before', () => {
  it('are read, and the next plan is made of them', async () => {
    const { node, rig } = make()
    await rig.sync(GOOD)
    const before = rig.kinds().length
    node.ipvs.servers.clear()
    await rig.sync(serviceOf('good', { ip: '172.30.0.1', endpoints: ['10.1.0.1', '10.1.0.2'] }))
    expect(rig.kinds().slice(before)).toContain('stale')
    expect(rig.of('failed')).toEqual([])
    expect(node.dump().filter(line => /^(virtual|real)/.test(line))).toEqual([
      'real TCP 172.30.0.1:80 -> 10.1.0.1:8080 weight 1',
      'real TCP 172.30.0.1:80 -> 10.1.0.2:8080 weight 1',
      'virtual TCP 172.30.0.1:80 rr 0 0',
    ])
    expect(node.complaints()).toEqual([])
  })
})

describe('an object that the kernel holds and does not list, or lists and does not hold', () => {
  const BAD = { ip: '172.30.0.2', endpoints: ['10.1.0.2'] }
  const NEW = serviceOf('new', { ip: '172.30.0.3', endpoints: ['10.1.0.3'] })

  it.each(['EEXIST', 'ESRCH'] as const)('costs its Service alone: %s of a virtual server', async code => {
    const { node, rig } = make()
    await rig.sync(GOOD)
    const { servers } = node.ipvs
    const set = servers.set.bind(servers)
    servers.set = (key, server) => (server.port === 81 ? refuse(code) : set(key, server))
    rig.offer([...GOOD, ...serviceOf('bad', { ...BAD, port: 81 }), ...NEW])
    await rig.until(() => node.dump().includes('address 172.30.0.3'), 2_000)
    await rig.synced()
    expect(rig.of('stale')).toHaveLength(2)
    expect(rig.of('failed')).toEqual([])
    expect(rig.of('quarantined')).toMatchObject([
      {
        service: 'ns/bad',
        error: { message: expect.stringMatching(/^set virtual server TCP 172\.30\.0\.2:81 \(ns\/bad\): E/) },
      },
    ])
    expect(node.dump()).not.toContain('address 172.30.0.2')
    servers.set = set
    await rig.until(() => rig.of('released').length > 0, 30_000)
    expect(node.dump()).toContain('address 172.30.0.2')
    expect(node.complaints()).toEqual([])
  })

  it('costs its Service alone: ENOENT of a real server', async () => {
    const { node, rig } = make()
    await rig.sync([...GOOD, ...serviceOf('bad', BAD)])
    const found = [...node.ipvs.servers.values()].find(({ address }) => address.startsWith('\xac\x1e\0\x02'))
    if (found === undefined) throw new Error('no such virtual server')
    const { destinations } = found
    for (const its of destinations.values()) its.activeConnections = 1
    const get = destinations.get.bind(destinations)
    destinations.get = () => undefined
    rig.offer([...GOOD, ...serviceOf('bad', { ...BAD, endpoints: ['10.1.0.9'] }), ...NEW])
    await rig.until(() => node.dump().includes('address 172.30.0.3'), 2_000)
    await rig.synced()
    expect(rig.of('failed')).toEqual([])
    expect(rig.of('quarantined')).toMatchObject([
      { service: 'ns/bad', error: { message: expect.stringContaining('172.30.0.2:80 (ns/bad): ENOENT') } },
    ])
    destinations.get = get
    await rig.until(() => rig.of('released').length > 0, 30_000)
    expect(node.complaints()).toEqual([])
  })
})

describe('what the kernel refuses of one Service', () => {
  it('leaves it without addresses, and all others served', async () => {
    const { node, rig } = make()
    const complaints: string[] = []
    node.afterMessage = () => complaints.push(...node.complaints())
    await rig.sync(GOOD)
    const more = serviceOf('more', { ip: '172.30.0.3', endpoints: ['10.1.0.3'] })
    const { servers } = node.ipvs
    const set = servers.set.bind(servers)
    servers.set = (key, server) =>
      server.address.startsWith('\xac\x1e\0\x02') ? refuse('EINVAL') : set(key, server)
    const bad = { ip: '172.30.0.2', endpoints: ['10.1.0.2'], externalIPs: ['192.0.2.2'], externalLocal: true }
    rig.offer([...GOOD, ...serviceOf('bad', bad), ...more])
    await rig.until(() => rig.of('quarantined').length > 0)
    await rig.wait(200)
    expect(rig.of('quarantined')).toMatchObject([{ service: 'ns/bad' }])
    expect(node.dump().filter(line => /^(virtual|address)/.test(line))).toEqual([
      'address 172.30.0.1',
      'address 172.30.0.3',
      'virtual TCP 172.30.0.1:80 rr 0 0',
      'virtual TCP 172.30.0.3:80 rr 0 0',
    ])
    expect(complaints).toEqual([])
    servers.set = set
    await rig.until(() => rig.of('released').length > 0, 30_000)
    expect(node.dump()).toContain('address 172.30.0.2')
  })
})

describe('the messages of a change', () => {
  /** Messages of one endpoint that is added to one Service among so many. */
  async function messagesOf(count: number): Promise<number> {
    const { node, rig } = make()
    const all = Array.from({ length: count }, (_, i) =>
      serviceOf(`s${i}`, { ip: `172.30.${i >> 7}.${(i & 127) + 1}`, endpoints: ['10.1.0.1'] }),
    ).flat()
    await rig.sync(all, 60_000)
    const before = node.messages
    const changed = serviceOf('s7', { ip: '172.30.0.8', endpoints: ['10.1.0.1', '10.1.0.2'] })
    await rig.sync([...all, ...changed])
    return node.messages - before
  }

  it.skipIf(IS_QUICK)('are as many among 2,000 Services as among 100', async () => {
    const few = await messagesOf(100)
    expect(few).toBeLessThan(6)
    expect(await messagesOf(2_000)).toBe(few)
  })
})

describe('a set that is full', () => {
  it('is replaced by a larger one while rules refer to it', async () => {
    const { node, rig, process } = make()
    await rig.sync(GOOD)
    const set = node.sets.set('KUBE-CLUSTER-IP')
    if (set === undefined) throw new Error('no such set')
    Object.assign(set, { maxElements: 2 })
    for (const port of [1, 2]) set.elements.set(`foreign ${port}`, { ip: '\x0a\0\0\x01', protocol: 6, port })
    const next = process()
    await next.sync([...GOOD, ...serviceOf('more', { ip: '172.30.0.3', endpoints: ['10.1.0.3'] })])
    const grown = node.sets.set('KUBE-CLUSTER-IP')
    expect(grown?.maxElements).toBeGreaterThan(2)
    expect(grown?.elements.size).toBe(2)
    expect(node.sets.slots.filter(each => each?.name.includes('tmp'))).toEqual([])
  })
})
