import { writeFileSync } from 'node:fs'
import { setTimeout as pause } from 'node:timers/promises'
import { beforeEach, describe, expect, it } from 'vitest'
import { BAD_UTF8, EXPIRED_EVENT, type Fault, gzipBomb, longLine, NULS } from '../support/apiserver/faults.ts'
import type { ApiServerOptions } from '../support/apiserver/http-server.ts'
import { kubeconfigText } from '../support/kubeconfig.ts'
import { eventually } from '../support/patience.ts'
import { createAuthority } from '../support/tls.ts'
import { ask, askSocket, Cluster } from './cluster.ts'
import { memoryOf } from './cluster-process.ts'
import { Removals } from './cluster-removals.ts'
import { frontendNames, listRuleset } from './kernel.ts'
import { nameOf, service, services } from './objects.ts'

const cluster = Cluster.ofEachTest()

const open = (server: ApiServerOptions = {}): Promise<void> => cluster.open({ server, objects: services(20) })

/** Something changes, and the kernel follows. */
async function keepsUp(): Promise<void> {
  cluster.put(...service(21), ...service(4, { endpoints: ['10.9.0.1:8080'] }))
  cluster.remove(...service(0))
  await cluster.converged()
  expect(frontendNames()).toContain(nameOf(21))
}

describe('a history that is gone', () => {
  beforeEach(() => open())

  it.each([0, 3])(
    'F08: 410 in the stream after %i events leads to a list, and what it lacks goes',
    async events => {
      const daemon = await cluster.running()
      const removals = await Removals.begin()
      const faults = [{ kind: 'event', after: events, event: EXPIRED_EVENT }] as const
      cluster.server.faults.add({ resource: 'services', verb: 'watch', times: 1, faults })
      cluster.server.cut()
      for (let number = 30; number < 30 + events; number++) cluster.put(...service(number))
      await eventually(() => cluster.server.log.some(({ code }) => code === 200))
      await eventually(() => frontendNames().size === 20 + events)
      expect(removals.lines).toEqual([])
      await keepsUp()
      await daemon.caughtUp()
      expect(daemon.strayLines).toEqual([])
    },
  )
})

describe('credentials and certificates', () => {
  beforeEach(() => open())

  it('F13: a token that was rotated is read again, and none is ever told', async () => {
    const [first, second] = ['first-token-0d5e', 'second-token-77aa']
    const { tokens } = cluster.server.semantics.access
    const tokenFile = cluster.file('token')
    tokens.set(first, { name: 'kprobe' })
    writeFileSync(tokenFile, first)
    cluster.configure({ tokenFile })
    const daemon = await cluster.running({ args: ['-v=4'] })
    const before = listRuleset()
    tokens.delete(first)
    tokens.set(second, { name: 'kprobe' })
    cluster.server.cut()
    await daemon.logged('Unauthorized')
    expect(listRuleset()).toBe(before)
    writeFileSync(tokenFile, second)
    await keepsUp()
    await daemon.logged('answers again')
    await daemon.stop()
    const said = [JSON.stringify(daemon.records), daemon.out, ...daemon.strayLines].join()
    for (const secret of [first, second]) expect(said).not.toContain(secret)
  })

  const NAMES = ['127.0.0.1']
  it.each([
    ['of another authority', () => createAuthority().issue({ names: NAMES })],
    [
      'that has expired',
      () => cluster.server.authority?.issue({ names: NAMES, untilSeconds: -60, fromSeconds: -120 }),
    ],
    ['for another host', () => cluster.server.authority?.issue({ names: ['192.0.2.1', 'elsewhere.test'] })],
  ])('F15: a certificate %s is refused with its reason, and rules stay', async (_, issue) => {
    const socket = cluster.file('admin')
    await cluster.running({ args: [`--admin-socket=${socket}`] })
    const before = listRuleset()
    const certificate = issue()
    if (certificate === undefined) throw new Error('the server has no authority')
    const wrong = await cluster.replaceServer({ certificate })
    cluster.put(...service(30))
    await eventually(async () => (await askSocket(socket, '/state')).body.includes('certificate is refused'))
    expect(wrong.log).toEqual([])
    expect(listRuleset()).toBe(before)
    await cluster.replaceServer()
    await keepsUp()
  })

  it('F15: with a new authority in the file of the kubeconfig the connection is made again', async () => {
    const caFile = cluster.file('ca.pem')
    writeFileSync(caFile, cluster.server.authority?.caPem ?? '')
    writeFileSync(cluster.kubeconfig, kubeconfigText({ server: cluster.server.url, caFile }))
    const socket = cluster.file('admin')
    await cluster.running({ args: [`--admin-socket=${socket}`] })
    const authority = createAuthority('the next one')
    await cluster.replaceServer({ tls: authority })
    await eventually(async () => (await askSocket(socket, '/state')).body.includes('certificate is refused'))
    writeFileSync(caFile, authority.caPem)
    await keepsUp()
  })
})

describe('rights that are missing', () => {
  const MOST = [{ verbs: ['*'], groups: ['', 'networking.k8s.io', 'events.k8s.io'], resources: ['*'] }]
  const ALL = [...MOST, { verbs: ['*'], groups: ['discovery.k8s.io'], resources: ['*'] }]

  beforeEach(async () => {
    await open()
    cluster.configure({ token: 'token' })
  })

  function allow(rules: typeof ALL): void {
    cluster.server.semantics.access.tokens.set('token', { name: 'kprobe', rules })
  }

  it('F14: 403 on slices alone at the start prunes nothing, and is told', async () => {
    allow(ALL)
    await cluster.programmedBefore()
    allow(MOST)
    const [removals, before] = [await Removals.begin(), listRuleset()]
    const daemon = cluster.daemon()
    await daemon.until(() => daemon.records.some(({ location }) => location === 'endpointslices'))
    expect(daemon.records.find(({ location }) => location === 'endpointslices')?.msg).toContain('forbidden')
    cluster.remove(...service(3))
    await pause(2_000)
    expect(listRuleset()).toBe(before)
    expect(removals.lines).toEqual([])
    expect(await ask('/healthz')).toMatchObject({ code: 503 })
    allow(ALL)
    await keepsUp()
  })

  it('F14: 403 on slices alone in steady state prunes nothing, and Services are followed', async () => {
    allow(ALL)
    const daemon = await cluster.running()
    const removals = await Removals.begin()
    allow(MOST)
    cluster.server.cut()
    await daemon.until(() => daemon.records.some(({ location }) => location === 'endpointslices'))
    cluster.put(...service(30), ...service(2, { endpoints: ['10.9.0.9:8080'] }))
    await eventually(() => frontendNames().has(nameOf(30)))
    expect(removals.lines).toEqual([])
    expect(listRuleset()).not.toContain('10.9.0.9')
    allow(ALL)
    await keepsUp()
    expect(listRuleset()).toContain('10.9.0.9')
  })
})

describe('a state that cannot be true', () => {
  it('F20: a replica that lags 1,000 versions behind brings nothing back', async () => {
    await open()
    const daemon = await cluster.running()
    for (let round = 0; round < 500; round++)
      cluster.put(...service(5, { endpoints: [`10.9.1.${1 + (round % 200)}:8080`] }))
    cluster.remove(...service(3))
    await cluster.converged()
    const [before, removals] = [listRuleset(), await Removals.begin()]
    const lagging = await cluster.replaceServer()
    lagging.faults.add({ faults: [{ kind: 'twist', behind: 1_000n }] })
    await eventually(() => cluster.asked().length >= 4)
    await pause(3_000)
    expect(frontendNames()).not.toContain(nameOf(3))
    expect(removals.lines).toEqual([])
    expect(before).toContain('10.9.1.100')
    lagging.faults.clear()
    lagging.cut()
    await keepsUp()
    await daemon.caughtUp()
    expect(daemon.said('fault')).toEqual([])
  })

  it.each([true, false])(
    'F29: an empty list that is not true prunes nothing (streamed: %s)',
    async watchList => {
      await open({ watchList })
      const daemon = await cluster.running()
      const removals = await Removals.begin()
      const expired = [{ kind: 'event', after: 0, event: EXPIRED_EVENT }] as const
      cluster.server.faults.add({ resource: 'services', verb: 'watch', times: 1, faults: expired })
      const none = [{ kind: 'twist', emptyList: true }] as const
      cluster.server.faults.add({ resource: 'services', verb: 'list', times: 1, faults: none })
      // What streams its list is answered with the end of an empty one.
      if (watchList) cluster.server.semantics.watchList = false
      cluster.server.cut()
      await daemon.until(() => daemon.said('list complete').some(({ reason }) => reason !== 'start'), 30_000)
      await pause(500)
      expect(removals.lines).toEqual([])
      await keepsUp()
    },
  )

  it('F29: the deletion of most Services at once, which the server confirms, is obeyed', async () => {
    await open()
    await cluster.running()
    await cluster.server.refuse()
    for (let number = 0; number < 18; number++) cluster.remove(...service(number))
    cluster.server.store.compact()
    await cluster.server.listen()
    await cluster.converged()
    expect(frontendNames().size).toBe(2)
  })

  it('F21: slices of a Service that arrive one by one after a restart take no endpoint away', async () => {
    await open()
    const parts = [1, 2, 3, 4, 5].map(part => {
      const [, slice] = service(1, { endpoints: [`10.0.1.${part}:8080`] })
      return { ...slice, metadata: { ...Object(slice).metadata, name: `s1-${part}` } }
    })
    cluster.put(...parts)
    await cluster.programmedBefore()
    const removals = await Removals.begin()
    const faults: readonly Fault[] = [{ kind: 'slow', bytesPerSecond: 3_000 }]
    cluster.server.faults.add({ resource: 'endpointslices', verb: 'watch', times: 1, faults })
    const daemon = await cluster.running()
    await cluster.converged()
    expect(removals.lines).toEqual([])
    cluster.server.faults.clear()
    cluster.server.cut()
    await keepsUp()
    expect(daemon.hasExited).toBe(false)
  })
})

describe('bytes that nobody can read', () => {
  beforeEach(() => open())

  const MIB = 1 << 20
  const at = { events: 2 } as const
  const UNREADABLE: readonly (readonly [string, Fault])[] = [
    ['a truncated event', { kind: 'ending', ending: 'end', at: { bytes: 700 } }],
    ['text that is not UTF-8', { kind: 'bytes', at, bytes: () => BAD_UTF8 }],
    ['NUL bytes', { kind: 'bytes', at, bytes: () => NULS }],
    ['a line of 64 MB', { kind: 'bytes', at, bytes: () => longLine(64 * MIB) }],
    ['a gzip bomb', gzipBomb(256 * MIB)],
  ]

  it('F24: each breaks the stream and nothing else, and fills no memory', async () => {
    const daemon = await cluster.running()
    const removals = await Removals.begin()
    const warnings = () => daemon.records.filter(({ level }) => level === 'warn').length
    for (const [round, [what, fault]] of UNREADABLE.entries()) {
      await daemon.caughtUp()
      const [warned, before] = [warnings(), memoryOf(daemon.pid)]
      const lift = cluster.server.faults.add({ resource: 'services', verb: 'watch', faults: [fault] })
      const requests = cluster.server.log.length
      cluster.server.cut()
      await eventually(() => cluster.asked(requests).includes('watch services'), what)
      for (const number of [30, 31, 32, 33]) cluster.put(...service(number + 10 * round))
      await daemon.until(() => warnings() > warned)
      expect(removals.lines, what).toEqual([])
      lift()
      await cluster.converged()
      expect(memoryOf(daemon.pid) - before, what).toBeLessThan(96 * MIB)
      expect(await ask('/livez'), what).toMatchObject({ code: 200 })
    }
    await keepsUp()
  })
})
