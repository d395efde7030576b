import { setTimeout as pause } from 'node:timers/promises'
import { beforeEach, describe, expect, it } from 'vitest'
import { eventually } from '../support/patience.ts'
import { ask, Cluster, type ClusterOptions, metric } from './cluster.ts'
import { Removals } from './cluster-removals.ts'
import { frontendNames, generation, listRuleset } from './kernel.ts'
import { clusterIp, nameOf, service, services } from './objects.ts'

const ENDPOINTS = ['10.0.1.1:8080', '10.0.1.2:8080', '10.0.1.3:8080']
/** The Service that clients use all the while. */
const USED = service(1, { endpoints: ENDPOINTS })
/** An outage, instead of the matrix' minutes and hours: back-off delays grow with it. */
const OUTAGE_MS = 3_000

const cluster = Cluster.ofEachTest()

const open = (options: ClusterOptions = {}): Promise<void> =>
  cluster.open({ ...options, objects: services(8) })

describe('an API server that cannot be reached', () => {
  beforeEach(() => open({ packets: true }))

  /** Connections to a Service, from outside and from the node, while `work` goes on; gives what came of them. */
  async function underTraffic(work: () => Promise<void>) {
    const servers = await cluster.lab.servers(ENDPOINTS)
    const destination = { destination: clusterIp(1), port: 80, rate: 100 }
    const clients = [
      cluster.lab.client({ from: 'outside', source: '203.0.113.5', ...destination }),
      cluster.lab.client({ from: 'node', source: '192.168.0.2', ...destination }),
    ]
    await work()
    const reports = await Promise.all(clients.map(client => client.stop()))
    await servers.close()
    return reports
  }

  const NO_ERRORS = { refused: 0, timeouts: 0, other: 0 }

  it('F01: down before the first list: nothing is written, what was there serves, and the reason is told', async () => {
    cluster.put(...USED)
    await cluster.programmedBefore()
    const [before, text] = [await generation(), listRuleset()]
    await cluster.server.refuse()
    const reports = await underTraffic(async () => {
      const daemon = cluster.daemon()
      await daemon.logged('ECONNREFUSED')
      await pause(OUTAGE_MS)
      expect(await generation()).toBe(before)
      expect(await ask('/healthz')).toMatchObject({ code: 503 })
      expect(await ask('/livez')).toMatchObject({ code: 200 })
      // Once, not once an attempt, and not once a resource.
      await daemon.caughtUp()
      expect(daemon.said('no Services known yet, retrying')).toHaveLength(1)
      cluster.put(...services(10))
      cluster.put(...USED)
      await cluster.server.listen()
      await cluster.converged()
      expect(await daemon.logged('the API server answers again')).toHaveLength(1)
    })
    expect(reports).toMatchObject([NO_ERRORS, NO_ERRORS])
    expect(await ask('/healthz')).toMatchObject({ code: 200 })
    expect(listRuleset()).not.toBe(text)
  })

  it('F02: down in steady state: no request fails, staleness grows, and the watches go on without a list', async () => {
    cluster.put(...USED)
    const daemon = await cluster.running()
    const before = await generation()
    const requests = cluster.server.log.length
    const reports = await underTraffic(async () => {
      await cluster.server.refuse()
      await daemon.logged('ECONNREFUSED')
      const stale = (await metric('kprobe_source_stale_seconds')) ?? 0
      await pause(OUTAGE_MS)
      expect(await metric('kprobe_source_stale_seconds')).toBeGreaterThan(stale + 1)
      expect(await ask('/healthz')).toMatchObject({ code: 200 })
      expect(await generation()).toBe(before)
      cluster.put(...service(20))
      cluster.remove(...service(5))
      await cluster.server.listen()
      await cluster.converged()
    })
    expect(reports).toMatchObject([NO_ERRORS, NO_ERRORS])
    expect(frontendNames()).toContain(nameOf(20))
    expect(cluster.asked(requests).filter(asked => asked.startsWith('list'))).toEqual([])
    await daemon.caughtUp()
    expect(daemon.said('ECONNREFUSED')).toHaveLength(1)
  })
})

describe('what changed while the API server was away', () => {
  beforeEach(() => open())

  /** The daemon misses `changes`; then it has to put things right. */
  async function missed(changes: () => void): Promise<void> {
    const daemon = await cluster.running()
    const removals = await Removals.begin()
    await cluster.server.refuse()
    await daemon.logged('; retrying')
    changes()
    expect(removals.lines).toEqual([])
    await cluster.server.listen()
    await cluster.converged()
  }

  it.each([
    ['one event after another', false],
    ['a list', true],
  ])(
    'F16, F17, F18: told by %s, what was deleted, added, changed and made again is as it is now',
    async (_, compacted) => {
      const [was, slice] = service(3)
      const spec = { ...Object(was).spec, clusterIP: '172.30.9.9', clusterIPs: ['172.30.9.9'] }
      await missed(() => {
        cluster.put(...service(2, { endpoints: ['10.9.0.1:8080', '10.1.2.1:8080'] }))
        cluster.put(...service(4, { endpoints: ['10.9.0.2:8080'] }), ...service(9))
        cluster.remove(...service(0), ...service(3))
        cluster.put({ ...was, spec }, slice ?? {})
        if (compacted) cluster.server.store.compact()
      })
      const rules = listRuleset()
      for (const there of ['10.9.0.1', '10.1.2.1', '10.9.0.2', clusterIp(9), '172.30.9.9'])
        expect(rules).toContain(there)
      for (const gone of ['10.1.2.2', '10.1.4.1', '10.1.4.2', `${clusterIp(0)} `, `${clusterIp(3)} `])
        expect(rules).not.toContain(gone)
      expect(frontendNames()).not.toContain(nameOf(0))
      expect(frontendNames().size).toBe(8)
    },
  )
})

describe('a connection that is reset', () => {
  it.each([
    ['streams lists', true, 'watch', { events: 8 }],
    ['pages lists', false, 'watch', 'before'],
    ['pages lists, in the middle of one', false, 'list', { bytes: 300 }],
  ] as const)(
    'F05: between list and watch loses no event, where the server %s',
    async (_, watchList, verb, at) => {
      await open({ server: { watchList } })
      const faults = [{ kind: 'ending', ending: 'reset', at }] as const
      cluster.server.faults.add({ resource: 'endpointslices', verb, times: 2, faults })
      const daemon = cluster.daemon()
      await eventually(() => cluster.server.accepted >= 2)
      cluster.put(...service(2, { endpoints: ['10.9.0.1:8080'] }), ...service(9))
      cluster.remove(...service(6))
      await daemon.synced()
      await cluster.converged()
      cluster.server.cut()
      cluster.put(...service(2, { endpoints: ['10.9.0.3:8080'] }))
      await eventually(() => listRuleset().includes('10.9.0.3'), 40_000)
      await cluster.converged()
      expect(listRuleset()).not.toContain('10.9.0.1')
    },
  )
})
