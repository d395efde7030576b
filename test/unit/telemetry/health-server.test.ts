import { describe, expect, it } from 'vitest'
import { HealthTracker, openHealthServer } from '../../../src/telemetry/health.ts'
import { countProbe } from '../../../src/telemetry/proxy-metrics.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { createMetrics } from '../../support/metrics.ts'
import { eventually } from '../../support/patience.ts'
import { ask, exchange, LOOPBACK, portOf } from './http-client.ts'

describe('openHealthServer', () => {
  it('answers any method, turns green with the first pass, and counts', async () => {
    const clock = new FakeClock()
    const wallMs = () => 1_800_000_000_000
    const health = new HealthTracker({ clock, wallMs, syncPeriodMs: 30_000 })
    const metrics = createMetrics()
    const server = openHealthServer({
      at: { ip: LOOPBACK, port: 0 },
      clock,
      hardFail: false,
      connectionsMax: 100,
      report: () => undefined,
      health,
      probed: (probe, code) => countProbe(metrics, probe, code),
    })
    await eventually(() => server.addresses.length === 1)
    const port = portOf(server.addresses[0])
    expect(await ask({ port, path: '/healthz' })).toMatchObject({ status: 503 })
    expect(await ask({ port, path: '/' })).toMatchObject({ status: 404 })
    expect(await ask({ port, path: '/livez?verbose' })).toMatchObject({ status: 200 })
    health.node(true)
    health.synced(1)
    expect(JSON.parse((await ask({ port, path: '/' })).body)).toEqual({ paths: ['/healthz', '/livez'] })
    for (const method of ['GET', 'HEAD', 'POST', 'DELETE', 'OPTIONS'])
      expect(await ask({ port, path: '/healthz', method })).toMatchObject({
        status: 200,
        headers: { 'content-type': 'application/json', 'x-content-type-options': 'nosniff' },
      })
    const lines = (await metrics.text()).split('\n')
    expect(lines).toContain('kubeproxy_proxy_healthz_total{code="503"} 1')
    expect(lines).toContain('kubeproxy_proxy_healthz_total{code="200"} 5')
    expect(lines).toContain('kubeproxy_proxy_livez_total{code="200"} 1')
    expect(await exchange(port, 'GET /healthz HTTP/1.0\n\n')).toMatch(/^HTTP\/1\.1 200/)
    server.close()
  })

  it("answers each health check of a cloud's load balancer: 10 addresses, and a new connection every second", async () => {
    const clock = new FakeClock()
    const health = new HealthTracker({ clock, wallMs: () => 0, syncPeriodMs: 30_000 })
    health.node(true)
    health.synced(1)
    const reports: unknown[] = []
    const server = openHealthServer({
      at: { ip: LOOPBACK, port: 0 },
      clock,
      hardFail: false,
      connectionsMax: 100,
      report: its => reports.push(its),
      health,
      probed: () => undefined,
    })
    await eventually(() => server.addresses.length === 1)
    const port = portOf(server.addresses[0])
    const clients = Array.from({ length: 10 }, (_, index) => `127.0.0.${11 + index}`)
    for (let second = 0; second < 60; second++) {
      const answers = await Promise.all(
        clients.map(localAddress => ask({ port, localAddress, path: '/healthz' })),
      )
      expect(answers.map(({ status }) => status)).toEqual(Array(10).fill(200))
      await clock.advance(1_000)
    }
    expect(server.overShare).toMatchObject({ evicted: 0, refused: 0 })
    expect(reports.map(String).filter(text => text.includes('crowd'))).toEqual([])
    server.close()
  })
})
