import { describe, expect, it } from 'vitest'
import { HealthTracker, healthHandler } from '../../../src/telemetry/health.ts'
import { FakeClock } from '../../support/fake-clock.ts'

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

describe('readiness', () => {
  it('ends when drift cannot be repaired, even without a change', async () => {
    const { health, pass } = settled()
    health.failed()
    await pass(60_000)
    expect(health.readiness().code).toBe(503)
  })

  it('is false until every family was programmed', async () => {
    const { health, pass } = tracker()
    health.node(true)
    expect(health.readiness()).toEqual({
      code: 503,
      body: {
        lastUpdated: NEVER,
        currentTime: '2026-11-21T10:00:00Z',
        nodeEligible: true,
        healthy: false,
        reason: 'not programmed yet: IPv4, IPv6',
        status: {
          IPv4: { lastUpdated: NEVER, healthy: false },
          IPv6: { lastUpdated: NEVER, healthy: false },
        },
      },
    })
    health.queued(1)
    await pass(1_500)
    expect(health.readiness().code).toBe(503)
    health.synced(1)
    expect(health.readiness().code).toBe(200)
    expect(health.healthy).toBe(true)
  })

  it('is true while a saved state is served, and gives its age', () => {
    const clock = new FakeClock()
    let staleS: number | undefined = 41.6
    const health = new HealthTracker({
      clock,
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

  it('ends when a change waits for twice the sync period, and comes back with the next pass', async () => {
    const { health, pass } = settled()
    health.queued(2)
    await pass(20_000)
    health.queued(3)
    await pass(39_999)
    expect(health.readiness().code).toBe(200)
    await pass(1)
    expect(health.readiness()).toMatchObject({
      code: 503,
      body: {
        lastUpdated: '2026-11-21T10:00:00Z',
        healthy: false,
        status: { IPv4: { lastUpdated: '2026-11-21T10:00:00Z', healthy: false } },
      },
    })
    expect(health.healthy).toBe(false)
    health.synced(3)
    expect(health.readiness().code).toBe(200)
  })

  it('counts anew when a pass left a newer change behind', async () => {
    const { health, pass } = settled()
    health.queued(2)
    health.queued(3)
    await pass(59_000)
    health.synced(2)
    await pass(59_999)
    expect(health.readiness().code).toBe(200)
    await pass(1)
    expect(health.readiness().code).toBe(503)
  })

  it('F43: follows the Node: unknown, to be removed, back again', () => {
    const { health } = settled()
    for (const [eligible, code, why] of [
      [undefined, 503, /was not found; --hostname-override sets its name/],
      [true, 200, undefined],
      [false, 503, /is being deleted, or has the taint/],
      [true, 200, undefined],
    ] as const) {
      health.node(eligible)
      expect(health.readiness()).toMatchObject({
        code,
        body: { nodeEligible: eligible ?? false, healthy: true },
      })
      const { reason } = health.readiness().body
      if (why === undefined) expect(reason).toBeUndefined()
      else expect(reason).toMatch(why)
      expect(health.liveness().code).toBe(200)
      expect(health.healthy).toBe(true)
    }
  })

  it('F43: names a Node that was deleted, families that are not programmed, and changes that wait', async () => {
    const { health, pass } = settled()
    health.node(false, true)
    expect(health.readiness().body.reason).toBe('the Node object of this machine was deleted')
    expect(tracker().health.readiness().body.reason).toBe('not programmed yet: IPv4, IPv6')
    health.queued(2)
    await pass(75_400)
    expect(health.readiness().body.reason).toBe('changes have waited 75 s to be programmed')
  })

  it('takes a new sync period', async () => {
    const { health, pass } = settled()
    health.queued(2)
    health.syncPeriod(5_000)
    await pass(10_000)
    expect(health.readiness().code).toBe(503)
  })

  it('F94: does not mind jumps of the wall clock', () => {
    const { health, wall } = settled()
    health.queued(2)
    for (const jumpMs of [365 * 86_400_000, -2 * 365 * 86_400_000]) {
      wall.ms += jumpMs
      expect(health.readiness().code).toBe(200)
      expect(health.liveness().code).toBe(200)
    }
  })
})

describe('liveness', () => {
  it('has no say about the node, and is true before the first pass', () => {
    expect(tracker().health.liveness()).toEqual({
      code: 200,
      body: {
        lastUpdated: '2026-11-21T10:00:00Z',
        currentTime: '2026-11-21T10:00:00Z',
        healthy: true,
        status: { IPv4: { lastUpdated: NEVER, healthy: true }, IPv6: { lastUpdated: NEVER, healthy: true } },
      },
    })
  })

  it('stays true while passes fail: a restart would not help', async () => {
    const { health, pass } = settled()
    health.queued(2)
    for (let round = 0; round < 20; round++) {
      await pass(30_000)
      health.failed()
      expect(health.liveness().code).toBe(200)
    }
    expect(health.readiness().code).toBe(503)
  })

  it('ends when a change waits and no pass ends', async () => {
    const { health, pass } = settled()
    await pass(600_000)
    health.queued(2)
    await pass(119_999)
    expect(health.liveness().code).toBe(200)
    await pass(1)
    expect(health.liveness()).toMatchObject({ code: 503, body: { healthy: false } })
    health.synced(2)
    expect(health.liveness().code).toBe(200)
  })

  it('waits twice a sync period that is longer', async () => {
    const { health, pass } = settled(300_000)
    health.queued(2)
    await pass(599_999)
    expect(health.liveness().code).toBe(200)
    await pass(1)
    expect(health.liveness().code).toBe(503)
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
