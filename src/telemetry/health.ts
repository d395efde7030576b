import type { Family } from '../base/ip.ts'
import { NEVER, rfc3339 } from './rfc3339.ts'

/** What is known of the work of this process, at one moment. Immutable; times are of the two clocks in `Now`. */
export interface HealthState {
  /** Families that have to be programmed before anything is ready. */
  readonly families: readonly Family[]
  readonly programmed: Readonly<Partial<Record<Family, Moment>>>
  /** Since when something has been waiting to be programmed; undefined when nothing is. */
  readonly pendingMs: number | undefined
  /** The newest Snapshot that was asked for. */
  readonly queued: number
  /** The time at which the last pass ended, successful or not. */
  readonly attemptedMs: number | undefined
  /** Undefined as long as the Node object is unknown. */
  readonly nodeEligible: boolean | undefined
  /** The Node object is gone; what it said last stays in use. */
  readonly nodeDeleted: boolean
}

/** The same moment by both clocks: durations are taken from the one, texts from the other. */
export interface Moment {
  readonly monotonicMs: number
  readonly wallMs: number
}

export function startOf(families: readonly Family[]): HealthState {
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

/** The Snapshot of this number is to be programmed. */
export function afterQueued(state: HealthState, number: number, now: Moment): HealthState {
  const pendingMs = state.pendingMs ?? now.monotonicMs
  return { ...state, pendingMs, queued: Math.max(state.queued, number) }
}

/** The kernel holds what the Snapshot of this number asks for, in all families. A newer one starts its own time. */
export function afterSynced(state: HealthState, number: number, now: Moment): HealthState {
  const programmed: Partial<Record<Family, Moment>> = {}
  for (const family of state.families) programmed[family] = now
  const pendingMs = state.queued > number ? now.monotonicMs : undefined
  return { ...state, programmed, pendingMs, attemptedMs: now.monotonicMs }
}

/** A pass ended in an error. It must be repeated even without a new event: it may be a repair. */
export function afterFailed(state: HealthState, now: Moment): HealthState {
  return { ...state, pendingMs: state.pendingMs ?? now.monotonicMs, attemptedMs: now.monotonicMs }
}

export function afterNode(
  state: HealthState,
  { eligible, deleted = false }: { readonly eligible: boolean | undefined; readonly deleted?: boolean },
): HealthState {
  return { ...state, nodeEligible: eligible, nodeDeleted: deleted }
}

export interface HealthLimits {
  /** Longest time that something may wait to be programmed. kube-proxy: twice the sync period. */
  readonly pendingMs: number
  /** Longest time without the end of a pass while something waits, before the process counts as stuck. */
  readonly stuckMs: number
}

/** Retries are up to 30 s apart and a pass over a large cluster takes seconds: less than this is not proof enough. */
const STUCK_MS_MIN = 120_000

export function limitsOf(syncPeriodMs: number): HealthLimits {
  return { pendingMs: 2 * syncPeriodMs, stuckMs: Math.max(2 * syncPeriodMs, STUCK_MS_MIN) }
}

/** Every family was programmed, and nothing waits too long: what load balancers want to know of this proxy. */
export function isHealthy(state: HealthState, limits: HealthLimits, nowMs: number): boolean {
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

/** False only when something waits and passes have stopped to end: then, and only then, a restart may help. */
function isAlive(state: HealthState, limits: HealthLimits, nowMs: number): boolean {
  if (state.pendingMs === undefined) return true
  return nowMs - Math.max(state.pendingMs, state.attemptedMs ?? 0) < limits.stuckMs
}

/** Body of an answer, in kube-proxy's shape and order. */
interface HealthBody {
  readonly lastUpdated: string
  readonly currentTime: string
  /** Only of /healthz: whether load balancers may use the node. */
  readonly nodeEligible?: boolean
  readonly healthy: boolean
  /** The reason of a 503, in words. kube-proxy's body does not have it. */
  readonly reason?: string
  readonly status: Readonly<
    Partial<Record<Family, { readonly lastUpdated: string; readonly healthy: boolean }>>
  >
}

export interface HealthAnswer {
  readonly code: 200 | 503
  readonly body: HealthBody
}

/** /healthz: may load balancers send connections here? The node has to be eligible, too (KEP-3836). */
export function readinessOf(state: HealthState, limits: HealthLimits, now: Moment): HealthAnswer {
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

/** /livez: would a restart help? */
export function livenessOf(state: HealthState, limits: HealthLimits, now: Moment): HealthAnswer {
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

/** With a good answer `lastUpdated` is now: readers of old compare it with the time. */
function times(
  state: HealthState,
  ok: boolean,
  { wallMs }: Moment,
): Pick<HealthBody, 'lastUpdated' | 'currentTime'> {
  const last = Math.max(...state.families.map(family => state.programmed[family]?.wallMs ?? 0))
  const lastUpdated = ok ? rfc3339(wallMs) : last === 0 ? NEVER : rfc3339(last)
  return { lastUpdated, currentTime: rfc3339(wallMs) }
}
