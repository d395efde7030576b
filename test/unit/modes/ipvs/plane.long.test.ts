import { describe, expect, it } from 'vitest'
import type { FakeClock } from '../../../support/fake-clock.ts'
import type { FakeDestination } from '../../../support/fake-ipvs/objects.ts'
import { DEVICE, type IpvsNode, ipOf } from '../../../support/ipvs-node.ts'
import { ip } from '../../../support/ipvs-objects.ts'
import { type IpvsBench, ipvsBench, NODE_IP } from '../../../support/ipvs-rig.ts'
import { type ServiceSpec, serviceOf } from '../../../support/ipvs-services.ts'

const WEB: ServiceSpec = { ip: '172.30.0.1', endpoints: ['10.1.0.1', '10.1.0.2'] }

/** Time goes by until it is done. */
async function done(clock: FakeClock, work: Promise<void>): Promise<void> {
  let isDone = false
  const settled = () => {
    isDone = true
  }
  work.then(settled, settled)
  for (let turns = 0; !isDone && turns < 5_000; turns++) await clock.advance(1)
  await work
}

/** `10.1.0.1 weight 1` of the server at this address. */
function destinations(node: IpvsNode, address: string): readonly string[] {
  return node
    .dump()
    .filter(line => line.startsWith('real') && line.includes(` ${address}:`))
    .map(line => line.replace(/^real \S+ \S+ -> (\S+):\d+/, '$1'))
}

function destination(node: IpvsNode, address: string): FakeDestination {
  const all = [...node.ipvs.servers.values()].flatMap(({ destinations: each }) => [...each.values()])
  const found = all.find(each => ipOf(each) === ip(address))
  if (found === undefined) throw new Error(`no real server ${address}`)
  return found
}

describe('an endpoint that goes', () => {
  it('keeps its connections at weight 0 and is removed when they end (F100)', async () => {
    const { node, clock, start } = ipvsBench()
    const rig = start({ digestMs: 1_000 })
    rig.plane.startUpkeep()
    await rig.sync(serviceOf('web', WEB))
    destination(node, '10.1.0.1').activeConnections = 3
    await rig.sync(serviceOf('web', { ...WEB, endpoints: ['10.1.0.2'] }))
    expect(destinations(node, '172.30.0.1')).toEqual(['10.1.0.1 weight 0', '10.1.0.2 weight 1'])
    await clock.advance(5_000)
    expect(destinations(node, '172.30.0.1')).toHaveLength(2)
    destination(node, '10.1.0.1').activeConnections = 0
    await rig.until(() => destinations(node, '172.30.0.1').length === 1, 5_000)
    expect(rig.upkeep).toMatchObject([{ kind: 'drained', connections: 0, endpoint: '10.1.0.1:8080' }])
    await clock.advance(40_000)
    expect(rig.of('foreign-commit')).toEqual([])
    expect(rig.of('repaired')).toEqual([])
  })

  it('is cut off at the deadline, counted anew after a restart (F100)', async () => {
    const { node, clock, start, stop } = ipvsBench()
    const rig = start({ drainMs: 60_000 })
    rig.plane.startUpkeep()
    await rig.sync(serviceOf('web', WEB))
    destination(node, '10.1.0.1').inactiveConnections = 7
    const after = serviceOf('web', { ...WEB, endpoints: ['10.1.0.2'] })
    await rig.sync(after)
    await clock.advance(50_000)
    await stop(rig)
    const next = start({ drainMs: 60_000 })
    next.plane.startUpkeep()
    await next.sync(after)
    await clock.advance(50_000)
    expect(destinations(node, '172.30.0.1')).toHaveLength(2)
    await clock.advance(15_000)
    expect(destinations(node, '172.30.0.1')).toEqual(['10.1.0.2 weight 1'])
    expect(next.upkeep).toMatchObject([{ kind: 'expired', connections: 7 }])
  })

  it.each([
    { tcpDrain: 'cut', beforeMs: 0, afterMs: 3_000 },
    { tcpDrain: '20s', beforeMs: 18_000, afterMs: 5_000 },
  ])('is cut off when its Service says so: $tcpDrain', async ({ tcpDrain, beforeMs, afterMs }) => {
    const { node, clock, start } = ipvsBench()
    const rig = start({ drainMs: 60_000 })
    rig.plane.startUpkeep()
    await rig.sync(serviceOf('web', { ...WEB, tcpDrain }))
    destination(node, '10.1.0.1').activeConnections = 3
    await rig.sync(serviceOf('web', { ...WEB, tcpDrain, endpoints: ['10.1.0.2'] }))
    await clock.advance(beforeMs)
    expect(destinations(node, '172.30.0.1')).toHaveLength(2)
    await clock.advance(afterMs)
    expect(destinations(node, '172.30.0.1')).toEqual(['10.1.0.2 weight 1'])
    expect(rig.upkeep).toMatchObject([{ kind: 'expired', connections: 3 }])
  })

  it('of SCTP is left to end, whatever its Service says of TCP', async () => {
    const { node, clock, start } = ipvsBench()
    const rig = start({ drainMs: 60_000 })
    rig.plane.startUpkeep()
    const spec = { ...WEB, protocol: 'SCTP', tcpDrain: 'cut' } as const
    await rig.sync(serviceOf('web', spec))
    destination(node, '10.1.0.1').activeConnections = 3
    await rig.sync(serviceOf('web', { ...spec, endpoints: ['10.1.0.2'] }))
    await clock.advance(5_000)
    expect(destinations(node, '172.30.0.1')).toEqual(['10.1.0.1 weight 0', '10.1.0.2 weight 1'])
  })

  it('that returns gets its weight back and is not removed, in this process and the next one (F101)', async () => {
    const { node, clock, start, stop } = ipvsBench()
    const rig = start({ drainMs: 60_000 })
    rig.plane.startUpkeep()
    await rig.sync(serviceOf('web', WEB))
    for (const address of ['10.1.0.1', '10.1.0.2']) destination(node, address).activeConnections = 1
    await rig.sync(serviceOf('web', { ...WEB, endpoints: ['10.1.0.2'] }))
    await clock.advance(30_000)
    await rig.sync(serviceOf('web', WEB))
    await clock.advance(60_000)
    expect(destinations(node, '172.30.0.1')).toEqual(['10.1.0.1 weight 1', '10.1.0.2 weight 1'])
    await rig.sync(serviceOf('web', { ...WEB, endpoints: [] }))
    expect(destinations(node, '172.30.0.1')).toEqual(['10.1.0.1 weight 0', '10.1.0.2 weight 0'])
    await stop(rig)
    const next = start({ drainMs: 60_000 })
    next.plane.startUpkeep()
    await next.sync(serviceOf('web', WEB))
    expect(destinations(node, '172.30.0.1')).toEqual(['10.1.0.1 weight 1', '10.1.0.2 weight 1'])
    await clock.advance(120_000)
    expect(destinations(node, '172.30.0.1')).toHaveLength(2)
    expect([...rig.upkeep, ...next.upkeep]).toEqual([])
  })

  it('is removed at once if it is UDP (F102)', async () => {
    const { node, start } = ipvsBench()
    const rig = start()
    const dns: ServiceSpec = { ...WEB, protocol: 'UDP', port: 53 }
    await rig.sync(serviceOf('dns', dns))
    destination(node, '10.1.0.1').activeConnections = 9
    await rig.sync(serviceOf('dns', { ...dns, endpoints: ['10.1.0.2'] }))
    expect(destinations(node, '172.30.0.1')).toEqual(['10.1.0.2 weight 1'])
  })
})

describe('an address that two Services share', () => {
  it('stays when one of them is deleted, and goes with the last (F103)', async () => {
    const { node, start } = ipvsBench()
    const rig = start()
    const shared = { endpoints: ['10.1.0.1'], externalIPs: ['192.0.2.1'] }
    const one = serviceOf('one', { ...shared, ip: '172.30.0.1', port: 80 })
    const other = serviceOf('other', { ...shared, ip: '172.30.0.2', port: 443 })
    await rig.sync([...one, ...other])
    expect(node.addresses()).toContain(ip('192.0.2.1'))
    const seen: boolean[] = []
    node.afterMessage = () => seen.push(node.addresses().includes(ip('192.0.2.1')))
    await rig.sync(other)
    expect(seen.length).toBeGreaterThan(0)
    expect(new Set(seen)).toEqual(new Set([true]))
    expect(node.dump().filter(line => line.startsWith('virtual TCP 192.0.2.1'))).toHaveLength(1)
    await rig.sync([])
    expect(node.addresses()).toEqual([])
  })
})

describe('what others have', () => {
  const FOREIGN = /^(virtual|real) TCP 198\.51\.100\.9|^address 198\.51\.100\.|^set theirs|^entry theirs/

  /** Virtual servers, addresses on our device, and sets. */
  async function furnish({ node, start, stop }: IpvsBench): Promise<readonly string[]> {
    const theirs = start({ tableName: 'theirs' })
    await theirs.sync(serviceOf('theirs', { ip: '198.51.100.9', endpoints: ['10.9.0.1'] }))
    await stop(theirs)
    for (const stem of ['IPVS-IPS', 'CLUSTER-IP']) node.sets.set(`KUBE-${stem}`)?.elements.clear()
    node.sets.put({ name: 'theirs', type: 'hash:ip' })
    node.links.addAddress(DEVICE, { family: 2, ip: ip('198.51.100.10'), prefixLength: 32, flags: 0 })
    return node.dump().filter(line => FOREIGN.test(line))
  }

  it('is left alone at the start, by changes, and by cleanup (F106)', async () => {
    const made = ipvsBench()
    const before = await furnish(made)
    expect(before.length).toBeGreaterThan(4)
    const rig = made.start({}, { driftPollMs: 0 })
    rig.plane.startUpkeep()
    await rig.sync(serviceOf('web', WEB))
    await made.clock.advance(120_000)
    await rig.sync(serviceOf('web', { ...WEB, endpoints: ['10.1.0.3'] }))
    expect(made.node.dump().filter(line => FOREIGN.test(line))).toEqual(before)
    await done(made.clock, rig.plane.cleanup())
    expect(made.node.dump()).toEqual(before)
    await done(made.clock, rig.plane.cleanup())
    expect(made.node.dump()).toEqual(before)
  })
})

describe('cleanup', () => {
  it('leaves nothing, and does it in an order in which nothing is exposed', async () => {
    const { node, clock, start } = ipvsBench()
    const rig = start({}, { driftPollMs: 0 })
    await rig.sync([
      ...serviceOf('web', { ...WEB, externalIPs: ['192.0.2.1'], nodePort: 30080 }),
      ...serviceOf('dns', { ip: '172.30.0.2', protocol: 'UDP', endpoints: ['10.1.0.5'], affinityS: 60 }),
    ])
    expect(node.dump().some(line => line.startsWith(`virtual TCP ${NODE_IP}:30080`))).toBe(true)
    const complaints: string[] = []
    node.afterMessage = () => complaints.push(...node.complaints())
    await done(clock, rig.plane.cleanup())
    expect(complaints).toEqual([])
    expect(node.dump()).toEqual([])
    expect(node.links.byName(DEVICE)).toBeUndefined()
    expect(node.nft.space.tables.size).toBe(0)
  })

  it('says what it cannot remove', async () => {
    const { node, clock, start } = ipvsBench()
    const rig = start({}, { driftPollMs: 0 })
    await rig.sync(serviceOf('web', WEB))
    node.sets.refer('KUBE-CLUSTER-IP')
    await expect(done(clock, rig.plane.cleanup())).rejects.toThrow(/KUBE-CLUSTER-IP/)
    expect(node.addresses()).toEqual([])
    expect(node.ipvs.servers.size).toBe(0)
  })
})
