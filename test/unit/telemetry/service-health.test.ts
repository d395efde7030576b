import { afterEach, describe, expect, it } from 'vitest'
import type { Family } from '../../../src/base/ip.ts'
import type { FrontendTable, NodePortAddresses, ServiceFrontends } from '../../../src/model/frontend.ts'
import {
  ServiceHealth,
  type ServiceHealthNews,
  serviceHealthAnswer,
} from '../../../src/telemetry/service-health.ts'
import { ip } from '../../support/addresses.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { HAS_IPV6 } from '../../support/loopback.ts'
import { eventually } from '../../support/patience.ts'
import { freePorts } from '../../support/reference/ports.ts'
import { tableOf } from '../../support/tables.ts'
import { ask, closed, connected, exchange, freePort, occupy } from './http-client.ts'

const opened: ServiceHealth[] = []

afterEach(() => {
  for (const its of opened.splice(0)) its.close()
})

const only = (...texts: readonly string[]): NodePortAddresses => ({ kind: 'only', ips: texts.map(ip) })
const LOOPBACK_ONLY = { IPv4: only('127.0.0.1'), IPv6: only() }

interface Opening {
  readonly healthy?: () => boolean
  readonly listenersMax?: number
  readonly connectionsMax?: number
}

function open({ healthy = () => true, listenersMax = 100, connectionsMax = 100 }: Opening = {}) {
  const clock = new FakeClock()
  const news: ServiceHealthNews[] = []
  const health = new ServiceHealth({
    clock,
    healthy,
    listenersMax,
    connectionsMax,
    report: its => news.push(its),
  })
  opened.push(health)
  const places = () => news.flatMap(its => (its.kind === 'listening' ? [its.address] : []))
  const failures = () => news.flatMap(its => (its.kind === 'failed' ? [`${its.service} ${its.address}`] : []))
  return { health, clock, news, places, failures }
}

type Check = { readonly port: number; readonly local: Readonly<Partial<Record<Family, number>>> }

function changed(table: FrontendTable, checks: Readonly<Record<string, Check | undefined>>): FrontendTable {
  const entries = Object.entries(checks).map(([service, healthCheck]): [string, ServiceFrontends] => [
    service,
    {
      service,
      clusterIps: [],
      ports: [],
      refusals: [],
      ...(healthCheck === undefined ? {} : { healthCheck }),
    },
  ])
  return { ...table, number: table.number + 1, services: table.services.with(entries) }
}

const EMPTY = { ...tableOf(1, {}), nodePorts: LOOPBACK_ONLY }

/** Health checks of so many Services, `ns/0` and on, of which as many as may be listen. */
async function serving(count: number, options: Opening) {
  const opened = open(options)
  const ports = await freePorts(count)
  const checks = ports.map((port, at) => [`ns/${at}`, { port, local: { IPv4: 1 } }] as const)
  const table = changed(EMPTY, Object.fromEntries(checks))
  opened.health.update(table)
  await eventually(() => opened.places().length === Math.min(count, options.listenersMax ?? count))
  return { ...opened, ports, table }
}

describe('serviceHealthAnswer', () => {
  it("is kube-proxy's to the byte", () => {
    expect(serviceHealthAnswer('ns/web', 3, true)).toEqual({
      status: 200,
      headers: {
        'Content-Type': 'application/json',
        'X-Content-Type-Options': 'nosniff',
        'X-Load-Balancing-Endpoint-Weight': '3',
      },
      body: '{\n\t"service": {\n\t\t"namespace": "ns",\n\t\t"name": "web"\n\t},\n\t"localEndpoints": 3,\n\t"serviceProxyHealthy": true\n}',
    })
  })

  it.each([
    [0, true],
    [2, false],
    [0, false],
  ])('is 503 with %i endpoints and a healthy proxy: %s', (local, healthy) => {
    expect(serviceHealthAnswer('ns/web', local, healthy).status).toBe(503)
  })
})

describe('ServiceHealth', () => {
  it('answers any method and path with the count of today', async () => {
    let healthy = true
    const { health, places } = open({ healthy: () => healthy })
    const port = await freePort()
    const table = changed(EMPTY, { 'ns/web': { port, local: { IPv4: 2 } } })
    health.update(table)
    await eventually(() => places().length === 1)
    expect(await ask({ port, path: '/whatever', method: 'POST' })).toMatchObject({
      status: 200,
      headers: { 'x-load-balancing-endpoint-weight': '2' },
    })
    expect(await exchange(port, 'GET / HTTP/1.0\n\n')).toMatch(/^HTTP\/1\.1 200/)
    health.update(changed(table, { 'ns/web': { port, local: { IPv4: 0 } } }))
    expect(await ask({ port })).toMatchObject({
      status: 503,
      headers: { 'x-load-balancing-endpoint-weight': '0' },
    })
    health.update(changed(table, { 'ns/web': { port, local: { IPv4: 1 } } }))
    healthy = false
    expect(await ask({ port })).toMatchObject({ status: 503 })
    expect(places()).toHaveLength(1)
  })

  it.runIf(HAS_IPV6)('listens in the families of the Service, each with its own count', async () => {
    const { health, places } = open()
    const port = await freePort()
    const everywhere: FrontendTable = {
      ...EMPTY,
      nodePorts: { IPv4: { kind: 'all' }, IPv6: { kind: 'all' } },
    }
    health.update(changed(everywhere, { 'ns/web': { port, local: { IPv4: 0, IPv6: 4 } } }))
    await eventually(() => places().length === 2)
    expect(places().sort()).toEqual([`0.0.0.0:${port}`, `[::]:${port}`])
    expect(await ask({ port })).toMatchObject({ status: 503 })
    expect(await ask({ port, host: '::1' })).toMatchObject({
      status: 200,
      headers: { 'x-load-balancing-endpoint-weight': '4' },
    })
  })

  it('opens nothing where no address matches', () => {
    const { health } = open()
    health.update(changed(EMPTY, { 'ns/web': { port: 1, local: { IPv6: 1 } } }))
    expect(health.counts).toEqual({ listening: 0, failed: 0 })
  })

  it('follows the addresses of the node', async () => {
    const { health, places } = open()
    const port = await freePort()
    const table = changed(EMPTY, { 'ns/web': { port, local: { IPv4: 1 } } })
    health.update(table)
    await eventually(() => places().length === 1)
    health.update({ ...table, nodePorts: { IPv4: only('127.0.0.1', '127.0.0.2'), IPv6: only() } })
    await eventually(() => places().length === 2)
    expect(await ask({ port, host: '127.0.0.2' })).toMatchObject({ status: 200 })
    health.update({ ...table, nodePorts: { IPv4: only('127.0.0.2'), IPv6: only() } })
    await expect(ask({ port })).rejects.toThrow('ECONNREFUSED')
    expect(await ask({ port, host: '127.0.0.2' })).toMatchObject({ status: 200 })
  })

  it('moves to another port, and gives a port from one Service to another', async () => {
    const { health, places, failures } = open()
    const [first = 0, second = 0] = await freePorts(2)
    const table = changed(EMPTY, { 'ns/a': { port: first, local: { IPv4: 1 } } })
    health.update(table)
    await eventually(() => places().length === 1)
    const idle = await connected(first)
    const gone = closed(idle)
    health.update(
      changed(table, {
        'ns/b': { port: first, local: { IPv4: 5 } },
        'ns/a': { port: second, local: { IPv4: 1 } },
      }),
    )
    await gone
    await eventually(() => places().length === 3)
    expect(failures()).toEqual([])
    expect((await ask({ port: first })).body).toContain('"name": "b"')
    expect((await ask({ port: second })).body).toContain('"name": "a"')
  })

  it('I-77, F99: says that a port is taken, serves its other addresses, and takes it when it is free', async () => {
    const { health, clock, places, failures, news } = open()
    const other = await occupy()
    const nodePorts = { IPv4: only('127.0.0.1', '127.0.0.2'), IPv6: only() }
    health.update(changed({ ...EMPTY, nodePorts }, { 'ns/web': { port: other.port, local: { IPv4: 1 } } }))
    await eventually(() => news.length === 2)
    expect(failures()).toEqual([`ns/web 127.0.0.1:${other.port}`])
    expect(await ask({ port: other.port, host: '127.0.0.2' })).toMatchObject({ status: 200 })
    await clock.advance(5_000)
    await eventually(() => clock.pending === 1)
    expect(failures()).toHaveLength(1)
    await other.leave()
    await clock.advance(5_000)
    await eventually(() => places().length === 2)
    expect(await ask({ port: other.port })).toMatchObject({ status: 200 })
    expect(health.counts).toEqual({ listening: 2, failed: 0 })
  })

  it('I-77: closes the socket of a Service that is gone, or needs it no more', async () => {
    const { health, places } = open()
    const [first = 0, second = 0] = await freePorts(2)
    const table = changed(EMPTY, {
      'ns/a': { port: first, local: { IPv4: 1 } },
      'ns/b': { port: second, local: { IPv4: 1 } },
    })
    health.update(table)
    await eventually(() => places().length === 2)
    const without = { ...table, services: table.services.with([['ns/a', undefined]]) }
    health.update(changed(without, { 'ns/b': undefined }))
    for (const port of [first, second]) await expect(ask({ port })).rejects.toThrow('ECONNREFUSED')
    expect(health.counts.listening).toBe(0)
  })

  it('F91: opens no more sockets than it may, says so, and lets others in when some have gone', async () => {
    const { health, clock, places, news, ports, table } = await serving(3, { listenersMax: 2 })
    expect(news.find(({ kind }) => kind === 'failed')).toMatchObject({
      error: {
        message: expect.stringMatching(/^no free descriptor: this process has 2 sockets for .*RLIMIT_NOFILE/),
      },
    })
    const served = places()[0]
    const first = ports.findIndex(port => served === `127.0.0.1:${port}`)
    health.update({ ...table, services: table.services.with([[`ns/${first}`, undefined]]) })
    await clock.advance(5_000)
    await eventually(() => places().length === 3)
    expect(health.counts).toEqual({ listening: 2, failed: 0 })
  })

  it('says how long an address waits where more have failed than are tried at once', async () => {
    const { health, news } = open({ listenersMax: 1 })
    const checks = Array.from(
      { length: 66 },
      (_, at) => [`ns/${at}`, { port: 30_000 + at, local: { IPv4: 1 } }] as const,
    )
    health.update(changed(EMPTY, Object.fromEntries(checks)))
    const waits = () => news.flatMap(its => (its.kind === 'failed' ? [its.retryMs] : []))
    await eventually(() => waits().length >= 65)
    expect([waits()[0], waits()[64]]).toEqual([5_000, 10_000])
  })

  it('F140: a namespace with few health check node ports gets its share when another one has them all', async () => {
    const { health, places, failures } = open({ listenersMax: 4 })
    const ports = await freePorts(6)
    const check = (at: number) => ({ port: ports[at] ?? 0, local: { IPv4: 1 } })
    const greedy = changed(EMPTY, Object.fromEntries([0, 1, 2, 3].map(at => [`greedy/${at}`, check(at)])))
    health.update(greedy)
    await eventually(() => places().length === 4)
    const both = changed(greedy, { 'small/a': check(4), 'small/b': check(5) })
    health.update(both)
    await eventually(() => places().length === 6)
    expect(failures().map(text => text.split(' ')[0])).toEqual(['greedy/0', 'greedy/1'])
    expect(await ask({ port: check(4).port })).toMatchObject({ status: 200 })
    await expect(ask({ port: check(0).port })).rejects.toThrow('ECONNREFUSED')
    expect(health.counts).toEqual({ listening: 4, failed: 2 })
  })

  it('F132: connections to one Service leave room for those to another', async () => {
    const { health, news, ports } = await serving(2, { connectionsMax: 8 })
    for (let round = 0; round < 20; round++) await connected(ports[0] ?? 0)
    await eventually(() => health.overShare.evicted === 19)
    const other = await connected(ports[1] ?? 0)
    for (let round = 0; round < 20; round++) await connected(ports[0] ?? 0)
    await eventually(() => health.overShare.evicted === 39)
    expect(other.destroyed).toBe(false)
    const crowds = news.filter(({ kind }) => kind === 'crowded')
    expect(crowds).toMatchObject([{ crowd: { client: 'loopback', service: 'ns/0', full: '127.0.0.1' } }])
  })

  it('F132: one client at many Services leaves room for others', async () => {
    const { health, news, ports } = await serving(6, { connectionsMax: 16 })
    for (const port of ports) await connected(port)
    await eventually(() => health.overShare.evicted === 2)
    const crowds = news.filter(({ kind }) => kind === 'crowded')
    expect(crowds).toMatchObject([{ crowd: { client: 'loopback', service: undefined, full: '127.0.0.1' } }])
  })

  it('touches what changed, and nothing else', async () => {
    const { health, places } = open({ listenersMax: 1_000 })
    const port = await freePort()
    const table = changed(tableOf(1, {}), { 'ns/web': { port, local: { IPv4: 1 } } })
    health.update({ ...table, nodePorts: LOOPBACK_ONLY })
    await eventually(() => places().length === 1)
    const same = { ...table, nodePorts: { ...LOOPBACK_ONLY } }
    health.update(same)
    health.update(same)
    expect(health.counts.listening).toBe(1)
    expect(places()).toHaveLength(1)
  })
})
