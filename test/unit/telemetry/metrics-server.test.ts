import { describe, expect, it } from 'vitest'
import type { MetricsFormat } from '../../../src/telemetry/metric-set.ts'
import {
  createSliMetrics,
  flagzText,
  metricsHandler,
  openMetricsServer,
  statuszText,
} from '../../../src/telemetry/metrics-server.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { createMetrics } from '../../support/metrics.ts'
import { eventually } from '../../support/patience.ts'
import { endpoint, node, service, slice, tableOf } from '../model/objects.ts'
import { ask, LOOPBACK, portOf } from './http-client.ts'

const PLAIN = { 'Content-Type': 'text/plain; charset=utf-8', 'X-Content-Type-Options': 'nosniff' }

function pages(metrics: (format: MetricsFormat) => Promise<string> = async () => 'a 1\n') {
  return metricsHandler({
    proxyMode: () => 'nftables',
    metrics,
    slis: createSliMetrics(),
    configz: () => ({ kind: 'KubeProxyConfiguration', mode: 'nftables' }),
  })
}

const get = (path: string, query = '') => ({ method: 'GET', path, query: new URLSearchParams(query) })

describe('metricsHandler', () => {
  it('answers /metrics and /metrics/slis in the text format', async () => {
    const handle = pages()
    const headers = { 'Content-Type': 'text/plain; version=0.0.4; charset=utf-8' }
    expect(await handle(get('/metrics'))).toEqual({ status: 200, headers, body: 'a 1\n' })
    for (let checks = 0; checks < 2; checks++) await handle(get('/healthz'))
    const slis = await handle(get('/metrics/slis'))
    expect(slis).toMatchObject({ status: 200, headers })
    const lines = String(slis.body).split('\n')
    expect(lines).toContain('kubernetes_healthcheck{name="ping",type="healthz"} 1')
    expect(lines).toContain('kubernetes_healthchecks_total{name="ping",type="healthz",status="success"} 2')
  })

  it.each([
    [undefined, 'text'],
    ['*/*', 'text'],
    ['text/html,application/xhtml+xml,*/*;q=0.8', 'text'],
    ['application/openmetrics-text; version=1.0.0', 'openmetrics'],
    [
      'application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1',
      'openmetrics',
    ],
    ['application/openmetrics-text;q=0.1,text/plain;q=0.2', 'text'],
    ['application/openmetrics-text;q=0', 'text'],
    ['APPLICATION/OPENMETRICS-TEXT;Q=1', 'openmetrics'],
    ['application/openmetrics-text;q=x', 'text'],
    [',;,', 'text'],
  ] as const)('answers Accept %j in %s', async (accept, format) => {
    const handle = pages(async asked => `${asked}\n`)
    for (const path of ['/metrics', '/metrics/slis']) {
      const { headers, body } = await handle({ ...get(path), accept })
      const type =
        format === 'text' ? 'text/plain; version=0.0.4' : 'application/openmetrics-text; version=1.0.0'
      expect(headers).toEqual({ 'Content-Type': `${type}; charset=utf-8` })
      if (path === '/metrics') expect(body).toBe(`${format}\n`)
      else expect(String(body).endsWith('# EOF\n')).toBe(format === 'openmetrics')
    }
  })

  it('answers /configz with the configuration under its group', async () => {
    expect(await pages()(get('/configz'))).toEqual({
      status: 200,
      headers: { 'Content-Type': 'application/json', 'X-Content-Type-Options': 'nosniff' },
      body: '{"kubeproxy.config.k8s.io":{"kind":"KubeProxyConfiguration","mode":"nftables"}}',
    })
  })

  it.each(['/debug/pprof/', '/debug/pprof/heap', '/debug/flags/v', '/nothing', '/metrics/'])(
    'I-07: has nothing at %s',
    async path => {
      expect(await pages()(get(path))).toMatchObject({ status: 404, body: '404 page not found\n' })
    },
  )

  it('lists at / the paths that answer', async () => {
    const { status, body } = await pages()(get('/'))
    expect(status).toBe(200)
    const { paths } = JSON.parse(String(body))
    expect(paths).toEqual(['/configz', '/healthz', '/metrics', '/metrics/slis', '/proxyMode'])
    for (const path of paths) expect(await pages()(get(path))).toMatchObject({ status: 200 })
  })

  it('answers /readyz where the port has such a page', async () => {
    let isReady = false
    const page = {
      proxyMode: () => 'relay',
      metrics: () => Promise.resolve(''),
      slis: createSliMetrics(),
      configz: () => ({}),
    }
    const handle = metricsHandler({ ...page, ready: () => isReady })
    expect(await handle(get('/readyz'))).toEqual({ status: 503, headers: PLAIN, body: 'not ready' })
    isReady = true
    expect(await handle(get('/readyz'))).toEqual({ status: 200, headers: PLAIN, body: 'ok' })
    expect(String((await handle(get('/'))).body)).toContain('/readyz')
    expect(await pages()(get('/readyz'))).toMatchObject({ status: 404 })
  })

  it('renders once for all who ask at the same time', async () => {
    let renderings = 0
    let finish: (text: string) => void = () => undefined
    const handle = pages(() => {
      renderings++
      return new Promise(resolve => {
        finish = resolve
      })
    })
    const both = [handle(get('/metrics')), handle(get('/metrics'))]
    finish('b 2\n')
    expect((await Promise.all(both)).map(({ body }) => body)).toEqual(['b 2\n', 'b 2\n'])
    const third = handle(get('/metrics'))
    finish('c 3\n')
    expect((await third).body).toBe('c 3\n')
    expect(renderings).toBe(2)
  })
})

describe('openMetricsServer', () => {
  it('serves the metrics, and only to readers', async () => {
    const metrics = createMetrics()
    const server = openMetricsServer({
      at: { ip: LOOPBACK, port: 0 },
      clock: new FakeClock(),
      hardFail: false,
      connectionsMax: 100,
      report: () => undefined,
      proxyMode: () => 'nftables',
      metrics: format => metrics.text(format),
      slis: createSliMetrics(),
      configz: () => ({}),
    })
    await eventually(() => server.addresses.length === 1)
    const port = portOf(server.addresses[0])
    const answer = await ask({ port, path: '/metrics' })
    expect(answer.status).toBe(200)
    const open = await ask({ port, path: '/metrics', headers: { Accept: 'application/openmetrics-text' } })
    expect(open.body.endsWith('# EOF\n')).toBe(true)
    expect(answer.body).toContain('# TYPE kprobe_commits_total counter')
    expect(await ask({ port, path: '/metrics/slis', method: 'DELETE' })).toMatchObject({ status: 405 })
    server.close()
  })
})

it('lists flags by name, a line each', () => {
  const lines = flagzText(
    new Map([
      ['v', '2'],
      ['cluster-cidr', ''],
      ['feature-gates', 'AllAlpha=false'],
    ]),
  ).split('\n')
  expect(lines.slice(0, 2)).toEqual(['', 'kube-proxy flagz'])
  expect(lines.slice(4)).toEqual(['cluster-cidr=', 'feature-gates=AllAlpha=false', 'v=2', ''])
})

it('/statusz says since when the process runs, in which mode, what it programmed and when', () => {
  const startedWallMs = Date.UTC(2026, 10, 21, 10, 0, 0)
  const wallMs = startedWallMs + (26 * 3600 + 62) * 1000
  const process = { startedWallMs, version: '0.1.0 (commit abc)', nodeName: 'node-1' }
  const paths = ['/healthz', '/metrics']
  const now = { wallMs, paths, mode: 'ipvs', ready: true, lastSync: { IPv4: '2026-11-21T10:00:01Z' } }
  const table = tableOf([
    node(),
    service('web'),
    slice('web-1', 'web', [endpoint('10.1.0.1'), endpoint('10.1.0.2')]),
  ])
  const text = statuszText(process, { ...now, table })
  expect(text).toContain('\nStarted: Sat, 21 Nov 2026 10:00:00 GMT\nUp: 26 hr 01 min 02 sec\n')
  expect(text).toContain('\nBinary version: 0.1.0 (commit abc)\nPaths: /healthz /metrics\nNode: node-1\n')
  expect(text).toContain(
    '\nProxy mode: ipvs\nProgrammed: 1 Service, 1 port, 2 endpoints\nLast sync: IPv4 2026-11-21T10:00:01Z\nReady: yes\n',
  )
  expect(text).not.toContain('Stale')
  expect(statuszText(process, { ...now, table, staleSeconds: 42 })).toContain(
    '\nStale: the saved state is served; the API server confirmed it 42 s ago\nReady: yes\n',
  )
  expect(text).not.toContain('Relayed')
  const relaying = { ...table, forwardedAtLocalhost: ['IPv4', 'IPv6'] } as const
  expect(statuszText(process, { ...now, table: relaying })).toContain(
    '\nRelayed: node ports at localhost, IPv4 and IPv6\n',
  )
  const before = statuszText(process, { ...now, table: undefined, ready: false })
  expect(before).toContain('\nProgrammed: nothing yet\n')
  expect(before).toContain('\nReady: no (see /healthz)\n')
})
