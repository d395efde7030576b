import { describe, expect, it } from 'vitest'
import { HealthTracker, healthHandler, openHealthServer } from '../../../src/telemetry/health.ts'
import { countProbe } from '../../../src/telemetry/proxy-metrics.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { createMetrics } from '../../support/metrics.ts'
import { eventually } from '../../support/patience.ts'
import { ask, exchange, LOOPBACK, portOf } from './http-client.ts'

const START_MS = Date.parse('2026-11-21T10:00:00.000Z')
const NEVER = '0001-01-01T00:00:00Z'

function tracker(syncPeriodMs = 30_000) {
  const clock = new FakeClock()
  const wall = { ms: START_MS }
  const failed: { family?: 'IPv4' | 'IPv6' } = {}
  const failedFamily = () => failed.family && { family: failed.family, error: new Error('EOPNOTSUPP') }
  const health = new HealthTracker({ clock, wallMs: () => wall.ms, syncPeriodMs, failedFamily })
  const pass = async (ms: number) => {
    wall.ms += ms
    await clock.advance(ms)
  }
  return { health, pass, wall, clock, failed }
}

/** Programmed once on an eligible node. */
function settled(...options: Parameters<typeof tracker>) {
  const its = tracker(...options)
  its.health.node(true)
  its.health.queued(1)
  its.health.synced(1)
  return its
}

describe('a family that the kernel cannot program', () => {
  const verbose = async (health: HealthTracker, path: string): Promise<string> => {
    const handle = healthHandler(health, () => undefined)
    return String((await handle({ method: 'GET', path, query: new URLSearchParams('verbose') })).body)
  }

  it('does not count where the Node has no address of it, and is shown', async () => {
    const { health, failed } = settled()
    health.node(true, false, ['IPv4'])
    failed.family = 'IPv6'
    const { code, body } = health.readiness()
    expect([code, body.healthy, Object.keys(body.status)]).toEqual([200, true, ['IPv4']])
    expect(await verbose(health, '/healthz')).toContain(
      '[+]programmed-ipv4 ok\n[+]node-eligible ok\n[-]programmed-ipv6 failed: EOPNOTSUPP (does not decide)\n',
    )
    expect(await verbose(health, '/livez')).not.toContain('ipv6')
  })

  it('is the reason of a 503 where the Node has an address of it, until it is programmed', async () => {
    const { health, failed } = settled()
    health.node(true, false, ['IPv4', 'IPv6'])
    expect(health.readiness().code).toBe(200)
    failed.family = 'IPv6'
    const { code, body } = health.readiness()
    expect([code, body.healthy, body.reason]).toEqual([
      503,
      false,
      'the kernel rejects the rules of IPv6, and the Node has an address of it: EOPNOTSUPP',
    ])
    expect(body.status.IPv4?.healthy).toBe(true)
    expect(await verbose(health, '/healthz')).toContain('[-]programmed-ipv6 failed: EOPNOTSUPP\n')
    expect(health.liveness().code).toBe(200)
    delete failed.family
    expect(health.readiness().code).toBe(200)
  })
})

const codes = ({ health }: ReturnType<typeof tracker>) => [health.readiness().code, health.liveness().code]

describe('readiness and liveness', () => {
  it('are false and true before the first pass', async () => {
    const { health, pass } = tracker()
    health.node(true)
    const currentTime = '2026-11-21T10:00:00Z'
    const statusOf = (healthy: boolean) => {
      const family = { lastUpdated: NEVER, healthy }
      return { IPv4: family, IPv6: family }
    }
    const reason = 'not programmed yet: IPv4, IPv6'
    const ready = { currentTime, nodeEligible: true, healthy: false, reason, status: statusOf(false) }
    expect(health.readiness()).toEqual({ code: 503, body: { lastUpdated: NEVER, ...ready } })
    const live = { lastUpdated: currentTime, currentTime, healthy: true, status: statusOf(true) }
    expect(health.liveness()).toEqual({ code: 200, body: live })
    health.queued(1)
    await pass(1_500)
    expect(health.readiness().code).toBe(503)
    health.synced(1)
    expect(health.readiness().code).toBe(200)
    expect(health.healthy).toBe(true)
  })

  it('are true while a saved state is served, and the first gives its age', () => {
    let staleS: number | undefined = 41.6
    const health = new HealthTracker({
      clock: new FakeClock(),
      wallMs: () => START_MS,
      syncPeriodMs: 30_000,
      servedStaleS: () => staleS,
    })
    health.node(true)
    health.queued(1)
    health.synced(1)
    expect(health.readiness()).toMatchObject({ code: 200, body: { healthy: true, staleSeconds: 42 } })
    expect(health.liveness().body).not.toHaveProperty('staleSeconds')
    staleS = undefined
    expect(health.readiness().body).not.toHaveProperty('staleSeconds')
  })

  it.each<[string, number, (health: HealthTracker) => void, number]>([
    ['a change waits', 60_000, health => health.queued(2), 30_000],
    ['drift cannot be repaired, even without a change', 60_000, health => health.failed(), 30_000],
    ['a new sync period is over', 10_000, health => [health.queued(2), health.syncPeriod(5_000)], 30_000],
    ['a longer sync period is over', 600_000, health => health.queued(2), 300_000],
  ])('the first ends when %s for twice the sync period: %i ms', async (_, ms, begin, syncPeriodMs) => {
    const its = settled(syncPeriodMs)
    begin(its.health)
    await its.pass(ms - 1)
    expect(its.health.readiness().code).toBe(200)
    await its.pass(1)
    expect(its.health.readiness()).toMatchObject({
      code: 503,
      body: {
        lastUpdated: '2026-11-21T10:00:00Z',
        healthy: false,
        reason: `changes have waited ${ms / 1_000} s to be programmed`,
        status: { IPv4: { lastUpdated: '2026-11-21T10:00:00Z', healthy: false } },
      },
    })
    expect(its.health.healthy).toBe(false)
    its.health.synced(2)
    expect(codes(its)).toEqual([200, 200])
  })

  it('the first counts from the oldest change, and anew when a pass left a newer one behind', async () => {
    const its = settled()
    its.health.queued(2)
    await its.pass(59_000)
    its.health.queued(3)
    its.health.synced(2)
    await its.pass(59_999)
    expect(its.health.readiness().code).toBe(200)
    await its.pass(1)
    expect(its.health.readiness().code).toBe(503)
  })

  it.each([
    [30_000, 120_000],
    [300_000, 600_000],
  ])('the second ends when a change waits and no pass ends, sync period %i: %i ms', async (period, ms) => {
    const { health, pass } = settled(period)
    await pass(600_000)
    health.queued(2)
    await pass(ms - 1)
    expect(health.liveness().code).toBe(200)
    await pass(1)
    expect(health.liveness()).toMatchObject({ code: 503, body: { healthy: false } })
    health.synced(2)
    expect(health.liveness().code).toBe(200)
  })

  it('the second stays true while passes fail: a restart would not help', async () => {
    const its = settled()
    its.health.queued(2)
    for (let round = 0; round < 20; round++) {
      await its.pass(30_000)
      its.health.failed()
      expect(its.health.liveness().code).toBe(200)
    }
    expect(codes(its)).toEqual([503, 200])
  })

  it('F43: the first follows the Node: unknown, to be removed, deleted, back again', () => {
    const { health } = settled()
    for (const [eligible, isDeleted, why] of [
      [undefined, false, /was not found; --hostname-override sets its name/],
      [true, false, undefined],
      [false, false, /is being deleted, or has the taint/],
      [false, true, /^the Node object of this machine was deleted$/],
      [true, false, undefined],
    ] as const) {
      health.node(eligible, isDeleted)
      const { code, body } = health.readiness()
      expect([code, body.nodeEligible, body.healthy]).toEqual([why ? 503 : 200, eligible ?? false, true])
      expect(body.reason).toEqual(why && expect.stringMatching(why))
      expect([health.liveness().code, health.healthy]).toEqual([200, true])
    }
  })

  it('F94: do not mind jumps of the wall clock', () => {
    const its = settled()
    its.health.queued(2)
    for (const jumpMs of [365 * 86_400_000, -2 * 365 * 86_400_000]) {
      its.wall.ms += jumpMs
      expect(codes(its)).toEqual([200, 200])
    }
  })
})

describe('healthHandler', () => {
  const headers = { 'Content-Type': 'application/json', 'X-Content-Type-Options': 'nosniff' }
  const request = { method: 'GET', query: new URLSearchParams() }

  it("writes kube-proxy's bodies to the byte", () => {
    const { health } = settled()
    const probes: string[] = []
    const handle = healthHandler(health, (probe, code) => probes.push(`${probe} ${code}`))
    const status =
      '"status":{"IPv4":{"lastUpdated":"2026-11-21T10:00:00Z","healthy":true},"IPv6":{"lastUpdated":"2026-11-21T10:00:00Z","healthy":true}}'
    expect(handle({ ...request, path: '/healthz' })).toEqual({
      status: 200,
      headers,
      body: `{"lastUpdated":"2026-11-21T10:00:00Z","currentTime":"2026-11-21T10:00:00Z","nodeEligible":true,"healthy":true,${status}}`,
    })
    expect(handle({ ...request, path: '/livez' })).toEqual({
      status: 200,
      headers,
      body: `{"lastUpdated":"2026-11-21T10:00:00Z","currentTime":"2026-11-21T10:00:00Z","healthy":true,${status}}`,
    })
    health.node(false)
    expect(handle({ ...request, path: '/healthz' })).toMatchObject({ status: 503, headers })
    expect(probes).toEqual(['healthz 200', 'livez 200', 'healthz 503'])
  })

  it('lists its checks in the form of Kubernetes with ?verbose, and the status code stays', () => {
    const { health } = settled()
    const verbose = { ...request, query: new URLSearchParams('verbose') }
    const handle = healthHandler(health, () => undefined)
    const lines = (path: string) => {
      const answer = handle({ ...verbose, path })
      return answer instanceof Promise ? [] : [answer.status, ...String(answer.body).trimEnd().split('\n')]
    }
    const fine = ['[+]ping ok', '[+]programmed-ipv4 ok', '[+]programmed-ipv6 ok']
    expect(lines('/healthz')).toEqual([200, ...fine, '[+]node-eligible ok', 'healthz check passed'])
    expect(lines('/livez')).toEqual([200, ...fine, 'livez check passed'])
    health.advise(() => ({ name: 'proof', failure: '2 of\n3 differ', isAdvice: true }))
    expect(lines('/healthz')).toContain('[-]proof failed: 2 of\\u{a}3 differ (does not decide)')
    expect(lines('/healthz')).toContain('healthz check passed')
    expect(lines('/livez')).not.toContain('[-]proof failed: 2 of\\u{a}3 differ (does not decide)')
    health.node(false)
    expect(lines('/healthz')).toEqual([
      503,
      ...fine,
      expect.stringMatching(/^\[-\]node-eligible failed: the Node is being deleted/),
      expect.stringContaining('[-]proof failed'),
      'healthz check failed',
    ])
  })

  it('I-07: knows no other path', () => {
    const handle = healthHandler(settled().health, () => undefined)
    for (const path of ['/nothing', '/healthz/', '/metrics', '/debug/pprof/', '/configz', '/readyz'])
      expect(handle({ ...request, path })).toMatchObject({ status: 404, body: '404 page not found\n' })
  })
})

describe('openHealthServer', () => {
  /** A server of a node on which nothing is programmed yet. */
  async function serving() {
    const clock = new FakeClock()
    const health = new HealthTracker({ clock, wallMs: () => START_MS, syncPeriodMs: 30_000 })
    const metrics = createMetrics()
    const reports: unknown[] = []
    const programmed = () => {
      health.node(true)
      health.synced(1)
    }
    const server = openHealthServer({
      at: { ip: LOOPBACK, port: 0 },
      clock,
      hardFail: false,
      connectionsMax: 100,
      report: its => reports.push(its),
      health,
      probed: (probe, code) => countProbe(metrics, probe, code),
    })
    await eventually(() => server.addresses.length === 1)
    return { clock, server, metrics, reports, programmed, port: portOf(server.addresses[0]) }
  }

  it('answers any method, turns green with the first pass, and counts', async () => {
    const { server, metrics, programmed, port } = await serving()
    expect(await ask({ port, path: '/healthz' })).toMatchObject({ status: 503 })
    expect(await ask({ port, path: '/' })).toMatchObject({ status: 404 })
    expect(await ask({ port, path: '/livez?verbose' })).toMatchObject({ status: 200 })
    programmed()
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
    const { clock, server, reports, programmed, port } = await serving()
    programmed()
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
