import { beforeEach, describe, expect, it } from 'vitest'
import { grpcClient, WatchClient } from '../support/api/watch-client.ts'
import type { Daemon } from '../support/daemon.ts'
import { ip } from '../support/lab/topology.ts'
import { eventually } from '../support/patience.ts'
import { answers, ask, Cluster, HEALTH_PORT, metric } from './cluster.ts'
import { descriptorsOf } from './cluster-process.ts'
import { crowd, NODE_ADDRESS, OUTSIDE, outside } from './crowd.ts'
import { service, services } from './objects.ts'

const cluster = Cluster.ofEachTest()

beforeEach(() => cluster.open())

/** Addresses of loopback that one process without privileges uses. */
const LOCAL = Array.from({ length: 8 }, (_, index) => `127.0.0.${index + 2}`)
const MANY = Array.from({ length: 20 }, (_, index) => `127.0.0.${index + 2}`)
const SLOW = 'GET /healthz HTTP/1.1\r\nX-A: '
const PROBES = 25
/** Of open files. */
const LIMIT = 1_024

/** Each of so many probes in a row is answered. */
async function answered(code: number, ...where: Parameters<typeof ask>): Promise<void> {
  for (let probe = 0; probe < PROBES; probe++)
    await eventually(async () => {
      try {
        return (await ask(...where)).code === code
      } catch (error) {
        // On a busy machine an answer may be late. A connection that was closed is none.
        if (String(error).includes('no answer')) return false
        throw error
      }
    })
}

function withHealthCheck(number: number, port: number, namespace = 'ns'): readonly object[] {
  const local = { type: 'LoadBalancer', externalTrafficPolicy: 'Local', healthCheckNodePort: port }
  return service(number).map(object => {
    const { kind, metadata, spec } = Object(object)
    const its = { ...Object(object), metadata: { ...metadata, namespace } }
    return kind === 'Service' ? { ...its, spec: { ...spec, ...local } } : its
  })
}

function overShare(server: string, outcome = 'evicted'): Promise<number | undefined> {
  return metric('kprobe_connections_over_share_total', `server="${server}",outcome="${outcome}"`)
}

describe('connections of one party', () => {
  it.each([
    ['are silent', ''],
    ['send headers slowly', SLOW],
  ])('F132: 640 connections of a local process that %s keep no probe from its answer', async (_, words) => {
    const daemon = await cluster.running()
    await crowd({ port: HEALTH_PORT, sources: LOCAL, count: 80, words })
    await answered(200, '/livez')
    await answered(200, '/healthz')
    expect(await overShare('healthz')).toBeGreaterThan(0)
    expect((await daemon.logged('too many connections'))[0]).toMatchObject({ client: 'loopback' })
  })

  it('F132: the probes of the node are answered while 8 addresses outside hold 640 connections', async () => {
    const there = outside()
    await cluster.running()
    await there(() =>
      crowd({ port: HEALTH_PORT, host: NODE_ADDRESS, sources: OUTSIDE, count: 80, returns: 0 }),
    )
    await answered(200, '/livez', HEALTH_PORT, NODE_ADDRESS)
    await answered(200, '/healthz', HEALTH_PORT, '127.0.0.1')
    expect(await there(() => answers(200, '/healthz', HEALTH_PORT, NODE_ADDRESS))).toBe(true)
  })

  it('F132: 1,200 connections to the health check node port of a Service leave those of others alone', async () => {
    ip(['addr add 192.168.0.2/32 dev lo'])
    cluster.put(...withHealthCheck(1, 31_001), ...withHealthCheck(2, 31_002))
    const daemon = await cluster.running()
    const host = '192.168.0.2'
    await eventually(() => answers(503, '/', 31_001, host))
    await crowd({ port: 31_001, host, sources: MANY, count: 60 })
    await answered(503, '/', 31_002, host)
    await answered(503, '/', 31_001, host)
    expect(await overShare('health_check_node_ports')).toBeGreaterThan(0)
    expect((await daemon.logged('too many connections'))[0]).toMatchObject({
      client: 'loopback',
      service: 'ns/s1',
    })
    expect(await metric('kprobe_health_check_listeners')).toBe(2)
  })

  it('F132, F140: back ends of the API are served while a local process holds more connections than it has', async () => {
    cluster.put(...services(3))
    const wrapper = ['prlimit', `--nofile=${LIMIT}:${LIMIT}`]
    const daemon = await cluster.running({ wrapper, args: ['--api=tcp://127.0.0.1:12090'] })
    await crowd({ port: 12_090, sources: LOCAL, count: 40 })
    await daemon.logged('api: too many connections')
    const client = grpcClient('tcp://127.0.0.1:12090')
    try {
      expect(await new WatchClient(client).ask()).toBe(1)
    } finally {
      client.close()
    }
  })
})

describe('descriptors', () => {
  const SERVICES = 1_500

  it('F140: 1,500 health check node ports and 1,024 descriptors: some are refused by name, all else works', async () => {
    ip(['addr add 192.168.0.2/32 dev lo'])
    const all = Array.from({ length: SERVICES }, (_, number) => withHealthCheck(number, 30_000 + number))
    cluster.put(...all.flat())
    const daemon = await cluster.running({ wrapper: ['prlimit', `--nofile=${LIMIT}:${LIMIT}`] })
    const counts = async () => [
      (await metric('kprobe_health_check_listeners')) ?? 0,
      (await metric('kprobe_health_check_listeners_failed')) ?? 0,
    ]
    await eventually(async () => (await counts()).reduce((sum, count) => sum + count) === SERVICES)
    const [listening = 0] = await counts()
    expect(listening).toBeGreaterThan(250)
    expect(descriptorsOf(daemon.pid)).toBeLessThan(LIMIT - 300)
    const said = () => daemon.said('health check node port: cannot listen')
    // A log that nobody reads for a moment leaves lines out.
    await daemon.until(() => said().length >= (SERVICES - listening) / 2)
    const refused = said()
    expect(JSON.stringify(refused[0])).toContain('RLIMIT_NOFILE')
    const posted = () => cluster.server.store.list('events').map(({ reason }) => reason)
    await eventually(() => posted().includes('FailedToStartServiceHealthcheck'))
    await crowd({ port: HEALTH_PORT, sources: LOCAL, count: 40 })
    // Everything is read anew, over a new connection.
    cluster.server.cut()
    cluster.put(...service(2_000))
    await cluster.converged()
    await answered(200, '/healthz')
    await answered(200, '/livez')
    // Those that wait are tried in turn, so there has to be room for every one that stays.
    const staying = new Set(refused.slice(0, 50).map(({ service: its }) => String(its)))
    const port = 30_000 + Number(String(refused[0]?.service).slice('ns/s'.length))
    expect(await answers(503, '/', port, '192.168.0.2')).toBe(false)
    cluster.remove(...all.filter((_, number) => !staying.has(`ns/s${number}`)).flat())
    await eventually(() => answers(503, '/', port, '192.168.0.2'))
    expect((await ask('/healthz')).code).toBe(200)
  })

  it('F140: 300 Services in userspace mode and 1,024 descriptors: some are refused by name, all else works', async () => {
    ip(['addr add 192.168.0.2/32 dev lo'])
    cluster.put(...services(300))
    const wrapper = ['prlimit', `--nofile=${LIMIT}:${LIMIT}`]
    const daemon = await cluster.running({ wrapper, args: ['--proxy-mode=userspace'] })
    const listening = (await metric('kprobe_relay_listeners')) ?? 0
    expect(listening).toBeGreaterThan(100)
    expect(await metric('kprobe_quarantined_services')).toBe(300 - listening)
    const isOfLimit = ({ err }: Daemon['records'][number]) =>
      JSON.stringify(err)?.includes('RLIMIT_NOFILE') === true
    await daemon.until(() => daemon.records.some(isOfLimit))
    const refused = daemon.records.find(isOfLimit)
    expect(refused).toMatchObject({ service: expect.stringMatching(/^ns\/s/) })
    const posted = () => cluster.server.store.list('events').map(({ reason }) => reason)
    await eventually(() => posted().includes('ServiceQuarantined'))
    const accepted = cluster.server.accepted
    cluster.server.cut()
    await eventually(() => cluster.server.accepted > accepted)
    cluster.remove(...service(Number(String(refused?.service).slice('ns/s'.length))))
    await eventually(async () => (await metric('kprobe_quarantined_services')) === 299 - listening)
    await answered(200, '/healthz')
    expect(descriptorsOf(daemon.pid)).toBeLessThan(LIMIT - 300)
    // A namespace that has nothing yet gets its share of a full relay.
    const quarantined = () => daemon.said('rejects a Service')
    await daemon.caughtUp()
    const before = quarantined().length
    const late = service(400).map(object => {
      const { metadata } = Object(object)
      return { ...Object(object), metadata: { ...metadata, namespace: 'late' } }
    })
    cluster.put(...late)
    await daemon.until(() => quarantined().length > before)
    await eventually(async () => (await metric('kprobe_quarantined_services')) === 300 - listening)
    await daemon.caughtUp()
    expect(quarantined().filter(({ service: its }) => its === 'late/s400')).toEqual([])
    expect(await metric('kprobe_relay_listeners')).toBe(listening)
  })
})
