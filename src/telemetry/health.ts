import type { Clock } from '../base/clock.ts'
import { FAMILIES, type Family } from '../base/ip.ts'
import { NEVER, oneLine, rfc3339 } from '../base/text.ts'
import { type Handler, type HttpAnswer, JSON_TYPE, listing, NOT_FOUND, PLAIN } from '../http/connections.ts'
import { HttpServer, type HttpServerOptions } from '../http/server.ts'

/** Body of an answer, with kube-proxy's fields in kube-proxy's order. */
interface HealthBody {
  readonly lastUpdated: string
  readonly currentTime: string
  /** Load balancers may use the node. Only in /healthz. */
  readonly nodeEligible?: boolean
  readonly healthy: boolean
  /** The reason for a 503. kube-proxy's body lacks it. */
  readonly reason?: string
  /** Age of the saved state that is served, only while it is; only in /healthz. kube-proxy's body lacks it. */
  readonly staleSeconds?: number
  readonly status: Readonly<
    Partial<Record<Family, { readonly lastUpdated: string; readonly healthy: boolean }>>
  >
}

export interface HealthAnswer {
  readonly code: 200 | 503
  readonly body: HealthBody
}

interface HealthTrackerOptions {
  readonly clock: Clock
  readonly wallMs: () => number
  readonly syncPeriodMs: number
  /** Tests whether load balancers may use this node while its Node object is unknown; absent: never. */
  readonly eligibleWithoutNode?: () => boolean
  /** Gives the family that the kernel cannot program, and the reason. */
  readonly failedFamily?: () => { readonly family: Family; readonly error: Error } | undefined
  /** Gives the age of a saved state that is served, seconds; undefined while none is. */
  readonly servedStaleS?: (() => number | undefined) | undefined
}

/** Tracks the health of this process. A family that the kernel rejects counts only if the Node has an address of it. */
export class HealthTracker {
  readonly #options: HealthTrackerOptions
  readonly #advisers: (() => HealthCheck | undefined)[] = []
  #syncPeriodMs: number
  /** The last moment at which the kernel held a Snapshot of this process. */
  #programmedWallMs: number | undefined
  #pendingMs: number | undefined
  #queued = 0
  #attemptedMs = 0
  /** Undefined while the Node object is unknown. */
  #nodeEligible: boolean | undefined
  /** The Node object was deleted; its last state stays in use. */
  #nodeDeleted = false
  #nodeFamilies: readonly Family[] = []

  constructor(options: HealthTrackerOptions) {
    this.#options = options
    this.#syncPeriodMs = options.syncPeriodMs
  }

  queued(number: number): void {
    this.#pendingMs ??= this.#options.clock.nowMs()
    this.#queued = Math.max(this.#queued, number)
  }

  /** The kernel holds the Snapshot of this number in all families. The wait of a newer one starts now. */
  synced(number: number): void {
    const { clock, wallMs } = this.#options
    this.#programmedWallMs = wallMs()
    this.#attemptedMs = clock.nowMs()
    this.#pendingMs = this.#queued > number ? this.#attemptedMs : undefined
  }

  /** A pass ended in an error. It counts as a wait even without a new event, because it may be a repair. */
  failed(): void {
    this.#attemptedMs = this.#options.clock.nowMs()
    this.#pendingMs ??= this.#attemptedMs
  }

  node(eligible: boolean | undefined, deleted = false, families: readonly Family[] = []): void {
    this.#nodeEligible = eligible
    this.#nodeFamilies = families
    this.#nodeDeleted = deleted
  }

  syncPeriod(syncPeriodMs: number): void {
    this.#syncPeriodMs = syncPeriodMs
  }

  /** Adds a check to /healthz?verbose that decides nothing; the line is missing while it is undefined. */
  advise(read: () => HealthCheck | undefined): void {
    this.#advisers.push(read)
  }

  advice(): readonly HealthCheck[] {
    const checks = this.#advisers.flatMap(read => read() ?? [])
    const failed = this.#options.failedFamily?.()
    if (failed === undefined) return checks
    const advice = this.#missing === undefined ? { isAdvice: true as const } : {}
    const name = `programmed-${failed.family.toLowerCase()}`
    return [{ name, failure: failed.error.message, ...advice }, ...checks]
  }

  get hasSynced(): boolean {
    return this.#programmedWallMs !== undefined
  }

  /**
   * The kernel has a Snapshot and no change has waited for longer than twice the sync period, as in kube-proxy. Health
   * check node ports show it as `serviceProxyHealthy`; the Node does not count.
   */
  get healthy(): boolean {
    return this.#isProgrammed && this.#missing === undefined
  }

  get #isProgrammed(): boolean {
    return this.hasSynced && this.#waitedMs(this.#pendingMs) < 2 * this.#syncPeriodMs
  }

  /** The family that the kernel cannot program, if the Node has an address of it. */
  get #missing() {
    const failed = this.#options.failedFamily?.()
    return failed !== undefined && this.#nodeFamilies.includes(failed.family) ? failed : undefined
  }

  /** Answers /healthz: whether load balancers may send connections here. The node must be eligible, too (KEP-3836). */
  readiness(): HealthAnswer {
    const { healthy } = this
    const nodeEligible = this.#nodeEligible ?? this.#options.eligibleWithoutNode?.() ?? false
    const isReady = healthy && nodeEligible
    const staleS = this.#options.servedStaleS?.()
    const reason = isReady ? {} : { reason: healthy ? this.#whyNotEligible() : this.#whyNotHealthy() }
    return this.#answer(isReady, this.#isProgrammed, {
      nodeEligible,
      healthy,
      ...reason,
      ...(staleS === undefined ? {} : { staleSeconds: Math.round(staleS) }),
    })
  }

  /** Answers /livez: 503 only if changes wait and no pass ends any more: then a restart may help. */
  liveness(): HealthAnswer {
    const sinceMs = this.#pendingMs === undefined ? undefined : Math.max(this.#pendingMs, this.#attemptedMs)
    // Retries are up to 30 s apart, and a pass over a large cluster takes seconds.
    const healthy = this.#waitedMs(sinceMs) < Math.max(2 * this.#syncPeriodMs, 120_000)
    return this.#answer(healthy, healthy, { healthy })
  }

  /** `lastUpdated` is now in a 200, because older readers compare it with the time. */
  #answer(
    isFine: boolean,
    isWell: boolean,
    its: Omit<HealthBody, 'lastUpdated' | 'currentTime' | 'status'>,
  ): HealthAnswer {
    const currentTime = rfc3339(this.#options.wallMs())
    const programmed = this.#programmedWallMs === undefined ? NEVER : rfc3339(this.#programmedWallMs)
    const family = { lastUpdated: programmed, healthy: isWell }
    // As in kube-proxy, a family that the kernel cannot program is missing.
    const failed = this.#options.failedFamily?.()?.family
    const status = Object.fromEntries(FAMILIES.filter(name => name !== failed).map(name => [name, family]))
    const { staleSeconds, ...rest } = its
    const stale = staleSeconds === undefined ? {} : { staleSeconds }
    const body = { lastUpdated: isFine ? currentTime : programmed, currentTime, ...rest, status, ...stale }
    return { code: isFine ? 200 : 503, body }
  }

  #whyNotEligible(): string {
    if (this.#nodeDeleted) return 'the Node object of this machine was deleted'
    return this.#nodeEligible === undefined
      ? 'the Node object of this machine was not found; --hostname-override sets its name'
      : 'the Node is being deleted, or has the taint ToBeDeletedByClusterAutoscaler'
  }

  #whyNotHealthy(): string {
    if (!this.hasSynced) return `not programmed yet: ${FAMILIES.join(', ')}`
    if (this.#isProgrammed && this.#missing !== undefined)
      return `the kernel rejects the rules of ${this.#missing.family}, and the Node has an address of it: ${this.#missing.error.message}`
    return `changes have waited ${Math.round(this.#waitedMs(this.#pendingMs) / 1000)} s to be programmed`
  }

  #waitedMs(sinceMs: number | undefined): number {
    return sinceMs === undefined ? Number.NEGATIVE_INFINITY : this.#options.clock.nowMs() - sinceMs
  }
}

export interface HealthCheck {
  readonly name: string
  /** Absent where the check did not fail. */
  readonly failure?: string
  /** A remark about a check that did not fail. */
  readonly note?: string
  /** The status code does not follow from it. */
  readonly isAdvice?: true
}

interface HealthServerOptions extends Omit<HttpServerOptions, 'handle'> {
  readonly health: HealthSource
  readonly probed: (probe: 'healthz' | 'livez', code: number) => void
}

type HealthSource = Pick<HealthTracker, 'readiness' | 'liveness' | 'advice'>

/**
 * Serves /healthz and /livez for any method, as kube-proxy does. Lists both at / once this node is ready: a load balancer that
 * probes / must not take an unready node for a ready one.
 */
export function openHealthServer(options: HealthServerOptions): HttpServer {
  const { health, probed, ...rest } = options
  return new HttpServer({ ...rest, handle: healthHandler(health, probed), isLenient: true })
}

export function healthHandler(health: HealthSource, probed: HealthServerOptions['probed']): Handler {
  return ({ path, query }) => {
    if (path === '/' && health.readiness().code === 200) return listing(['/healthz', '/livez'])
    if (path !== '/healthz' && path !== '/livez') return NOT_FOUND
    const isReadiness = path === '/healthz'
    const answer = isReadiness ? health.readiness() : health.liveness()
    const probe = isReadiness ? 'healthz' : 'livez'
    probed(probe, answer.code)
    if (!query.has('verbose')) return httpAnswer(answer)
    const checks = [...checksOf(answer.body), ...(isReadiness ? health.advice() : [])]
    return { status: answer.code, headers: PLAIN, body: verboseText(probe, answer.code, checks) }
  }
}

/** Lists the checks behind an answer: the families, and the Node where it counts. */
function checksOf({
  status,
  nodeEligible,
  healthy,
  reason,
  staleSeconds,
}: HealthBody): readonly HealthCheck[] {
  const why = reason ?? 'no pass has ended for too long'
  const families = Object.entries(status).map(([family, { healthy: isWell }]) => ({
    name: `programmed-${family.toLowerCase()}`,
    ...(isWell ? {} : { failure: why }),
  }))
  const node = {
    name: 'node-eligible',
    ...(nodeEligible === false ? { failure: healthy ? why : 'not eligible' } : {}),
  }
  const stale: HealthCheck = {
    name: 'source',
    failure: `a saved state is served, ${staleSeconds} s old`,
    isAdvice: true,
  }
  return [
    { name: 'ping' },
    ...families,
    ...(nodeEligible === undefined ? [] : [node]),
    ...(staleSeconds === undefined ? [] : [stale]),
  ]
}

function verboseText(probe: string, code: number, checks: readonly HealthCheck[]): string {
  const lines = checks.map(({ name, failure, note, isAdvice }) => {
    if (failure === undefined) return `[+]${name} ok${note === undefined ? '' : `: ${oneLine(note)}`}`
    return `[-]${name} failed: ${oneLine(failure)}${isAdvice === true ? ' (does not decide)' : ''}`
  })
  return `${[...lines, `${probe} check ${code === 200 ? 'passed' : 'failed'}`].join('\n')}\n`
}

function httpAnswer({ code, body }: HealthAnswer): HttpAnswer {
  return { status: code, headers: JSON_TYPE, body: JSON.stringify(body) }
}
