import type { Clock } from '../base/clock.ts'
import type { Family } from '../base/ip.ts'
import { NEVER, oneLine, rfc3339 } from '../base/text.ts'
import { type Handler, type HttpAnswer, JSON_TYPE, listing, NOT_FOUND, PLAIN } from '../http/connections.ts'
import { HttpServer, type HttpServerOptions } from '../http/server.ts'

/** The progress of this process at one moment. Immutable. */
interface HealthState {
  /** Families that must be programmed before the process is ready. */
  readonly families: readonly Family[]
  readonly programmed: Readonly<Partial<Record<Family, Moment>>>
  /** Start of the wait of unprogrammed changes; undefined without any. */
  readonly pendingMs: number | undefined
  /** The number of the newest Snapshot to program. */
  readonly queued: number
  /** The time at which the last pass ended, successful or not. */
  readonly attemptedMs: number | undefined
  /** Undefined while the Node object is unknown. */
  readonly nodeEligible: boolean | undefined
  /** The Node object was deleted; its last state stays in use. */
  readonly nodeDeleted: boolean
}

/** One moment by both clocks: the monotonic one for durations, the wall clock for texts. */
interface Moment {
  readonly monotonicMs: number
  readonly wallMs: number
}

function startOf(families: readonly Family[]): HealthState {
  return {
    families,
    programmed: {},
    pendingMs: undefined,
    queued: 0,
    attemptedMs: undefined,
    nodeEligible: undefined,
    nodeDeleted: false,
  }
}

interface HealthLimits {
  /** Maximum wait of unprogrammed changes: twice the sync period, as in kube-proxy. */
  readonly pendingMs: number
  /** Maximum time without the end of a pass while changes wait; after it the process counts as stuck. */
  readonly stuckMs: number
}

/** Retries are up to 30 s apart, and a pass over a large cluster takes seconds. */
const STUCK_MS_MIN = 120_000

function limitsOf(syncPeriodMs: number): HealthLimits {
  return { pendingMs: 2 * syncPeriodMs, stuckMs: Math.max(2 * syncPeriodMs, STUCK_MS_MIN) }
}

/** Tests whether every family is programmed and no change waits too long. */
function isHealthy(state: HealthState, limits: HealthLimits, nowMs: number): boolean {
  return state.families.every(family => isFamilyHealthy(state, limits, { family, nowMs }))
}

function isFamilyHealthy(
  state: HealthState,
  limits: HealthLimits,
  { family, nowMs }: { readonly family: Family; readonly nowMs: number },
): boolean {
  if (state.programmed[family] === undefined) return false
  return state.pendingMs === undefined || nowMs - state.pendingMs < limits.pendingMs
}

/** Gives false only if changes wait and no pass ends any more: then a restart may help. */
function isAlive(state: HealthState, limits: HealthLimits, nowMs: number): boolean {
  if (state.pendingMs === undefined) return true
  return nowMs - Math.max(state.pendingMs, state.attemptedMs ?? 0) < limits.stuckMs
}

/** Body of an answer, with kube-proxy's fields in kube-proxy's order. */
interface HealthBody {
  readonly lastUpdated: string
  readonly currentTime: string
  /** Whether load balancers may use the node; only in /healthz. */
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

/** Answers /healthz: whether load balancers may send connections here. The node must be eligible, too (KEP-3836). */
function readinessOf(state: HealthState, limits: HealthLimits, now: Moment): HealthAnswer {
  const healthy = isHealthy(state, limits, now.monotonicMs)
  const nodeEligible = state.nodeEligible ?? false
  const ok = healthy && nodeEligible
  const status = statusOf(state, family => isFamilyHealthy(state, limits, { family, nowMs: now.monotonicMs }))
  return {
    code: ok ? 200 : 503,
    body: {
      ...times(state, ok, now),
      nodeEligible,
      healthy,
      ...(ok ? {} : { reason: healthy ? whyNotEligible(state) : whyNotHealthy(state, now) }),
      status,
    },
  }
}

function whyNotEligible({ nodeEligible, nodeDeleted }: HealthState): string {
  if (nodeDeleted) return 'the Node object of this machine was deleted'
  return nodeEligible === undefined
    ? 'the Node object of this machine was not found; --hostname-override sets its name'
    : 'the Node is being deleted, or has the taint ToBeDeletedByClusterAutoscaler'
}

function whyNotHealthy({ families, programmed, pendingMs }: HealthState, now: Moment): string {
  const missing = families.filter(family => programmed[family] === undefined)
  if (missing.length > 0) return `not programmed yet: ${missing.join(', ')}`
  const waitedS = Math.round((now.monotonicMs - (pendingMs ?? now.monotonicMs)) / 1000)
  return `changes have waited ${waitedS} s to be programmed`
}

/** Answers /livez: 503 if a restart may help. */
function livenessOf(state: HealthState, limits: HealthLimits, now: Moment): HealthAnswer {
  const healthy = isAlive(state, limits, now.monotonicMs)
  const status = statusOf(state, () => healthy)
  return { code: healthy ? 200 : 503, body: { ...times(state, healthy, now), healthy, status } }
}

function statusOf(state: HealthState, isWell: (family: Family) => boolean): HealthBody['status'] {
  const status: Partial<Record<Family, { readonly lastUpdated: string; readonly healthy: boolean }>> = {}
  for (const family of state.families) {
    const at = state.programmed[family]
    status[family] = { lastUpdated: at === undefined ? NEVER : rfc3339(at.wallMs), healthy: isWell(family) }
  }
  return status
}

/** `lastUpdated` is now in a 200, because older readers compare it with the time. */
function times(
  state: HealthState,
  ok: boolean,
  { wallMs }: Moment,
): Pick<HealthBody, 'lastUpdated' | 'currentTime'> {
  const last = Math.max(...state.families.map(family => state.programmed[family]?.wallMs ?? 0))
  const lastUpdated = ok ? rfc3339(wallMs) : last === 0 ? NEVER : rfc3339(last)
  return { lastUpdated, currentTime: rfc3339(wallMs) }
}

interface HealthTrackerOptions {
  /** The families that this process programs. */
  readonly families: readonly Family[]
  readonly clock: Clock
  /** Milliseconds since 1970. */
  readonly wallMs: () => number
  readonly syncPeriodMs: number
  /** Tests whether load balancers may use this node while its Node object is unknown; absent: never. */
  readonly eligibleWithoutNode?: () => boolean
  /** Gives the age of a saved state that is served, seconds; undefined while none is. */
  readonly servedStaleS?: (() => number | undefined) | undefined
}

/** Tracks the health of this process. */
export class HealthTracker {
  readonly #options: HealthTrackerOptions
  readonly #advisers: (() => HealthCheck)[] = []
  #limits: HealthLimits
  #state: HealthState

  constructor(options: HealthTrackerOptions) {
    this.#options = options
    this.#limits = limitsOf(options.syncPeriodMs)
    this.#state = startOf(options.families)
  }

  /** A Snapshot is to be programmed, since `at`. */
  queued(number: number, at = this.#now()): void {
    const { pendingMs = at.monotonicMs, queued } = this.#state
    this.#state = { ...this.#state, pendingMs, queued: Math.max(queued, number) }
  }

  /** The kernel holds the Snapshot of this number in all families. The wait of a newer one starts now. */
  synced(number: number): void {
    const now = this.#now()
    const programmed = Object.fromEntries(this.#options.families.map(family => [family, now]))
    const pendingMs = this.#state.queued > number ? now.monotonicMs : undefined
    this.#state = { ...this.#state, programmed, pendingMs, attemptedMs: now.monotonicMs }
  }

  /** A pass ended in an error. It counts as a wait even without a new event, because it may be a repair. */
  failed(): void {
    const attemptedMs = this.#options.clock.nowMs()
    this.#state = { ...this.#state, pendingMs: this.#state.pendingMs ?? attemptedMs, attemptedMs }
  }

  /** Sets whether load balancers may use this node; undefined while its Node object is unknown. */
  node(eligible: boolean | undefined, deleted = false): void {
    this.#state = { ...this.#state, nodeEligible: eligible, nodeDeleted: deleted }
  }

  /** Applies a new configuration. */
  syncPeriod(syncPeriodMs: number): void {
    this.#limits = limitsOf(syncPeriodMs)
  }

  /** Adds a check to /healthz?verbose that decides nothing. */
  advise(read: () => HealthCheck): void {
    this.#advisers.push(read)
  }

  advice(): readonly HealthCheck[] {
    return this.#advisers.map(read => read())
  }

  /** The kernel has held a Snapshot of this process in all families. */
  get hasSynced(): boolean {
    return Object.keys(this.#state.programmed).length > 0
  }

  /** Health regardless of the Node: `serviceProxyHealthy` of health check node ports. */
  get healthy(): boolean {
    return isHealthy(this.#state, this.#limits, this.#options.clock.nowMs())
  }

  readiness(): HealthAnswer {
    const isEligible = this.#state.nodeEligible ?? this.#options.eligibleWithoutNode?.()
    const state = isEligible === true ? { ...this.#state, nodeEligible: true } : this.#state
    const answer = readinessOf(state, this.#limits, this.#now())
    const staleS = this.#options.servedStaleS?.()
    if (staleS === undefined) return answer
    return { ...answer, body: { ...answer.body, staleSeconds: Math.round(staleS) } }
  }

  liveness(): HealthAnswer {
    return livenessOf(this.#state, this.#limits, this.#now())
  }

  #now(): Moment {
    const { clock, wallMs } = this.#options
    return { monotonicMs: clock.nowMs(), wallMs: wallMs() }
  }
}

/** One line of `/healthz?verbose`. */
export interface HealthCheck {
  readonly name: string
  /** Why it failed; absent where it did not. */
  readonly failure?: string
  /** What more there is to say of one that did not fail. */
  readonly note?: string
  /** The status code does not follow from it. */
  readonly isAdvice?: true
}

interface HealthServerOptions extends Omit<HttpServerOptions, 'handle'> {
  readonly health: HealthSource
  /** Counts a probe for the metrics. */
  readonly probed: (probe: 'healthz' | 'livez', code: number) => void
}

type HealthSource = Pick<HealthTracker, 'readiness' | 'liveness' | 'advice'>

/** Serves /healthz and /livez for any method, as kube-proxy does, and a list of both at /. */
export function openHealthServer(options: HealthServerOptions): HttpServer {
  const { health, probed, ...rest } = options
  return new HttpServer({ ...rest, handle: healthHandler(health, probed) })
}

export function healthHandler(health: HealthSource, probed: HealthServerOptions['probed']): Handler {
  return ({ path, query }) => {
    if (path === '/') return listing(['/healthz', '/livez'])
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
  const why = reason ?? 'no pass ends any more'
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

/** Lists the checks in the form of Kubernetes' components. */
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
