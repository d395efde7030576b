import type { Clock } from '../base/clock.ts'
import type { Family } from '../base/ip.ts'
import {
  afterFailed,
  afterNode,
  afterQueued,
  afterSynced,
  type HealthAnswer,
  type HealthLimits,
  type HealthState,
  isHealthy,
  limitsOf,
  livenessOf,
  type Moment,
  readinessOf,
  startOf,
} from './health.ts'

interface HealthTrackerOptions {
  /** The families that this process programs. */
  readonly families: readonly Family[]
  readonly clock: Clock
  /** Milliseconds since 1970. */
  readonly wallMs: () => number
  readonly syncPeriodMs: number
  /** Tests whether load balancers may use this node while its Node object is unknown; absent: never. */
  readonly eligibleWithoutNode?: () => boolean
}

/** Tracks the health of this process. */
export class HealthTracker {
  readonly #options: HealthTrackerOptions
  #limits: HealthLimits
  #state: HealthState

  constructor(options: HealthTrackerOptions) {
    this.#options = options
    this.#limits = limitsOf(options.syncPeriodMs)
    this.#state = startOf(options.families)
  }

  /** A Snapshot is to be programmed. */
  queued(number: number): void {
    this.#state = afterQueued(this.#state, number, this.#now())
  }

  /** The kernel holds the Snapshot of this number. */
  synced(number: number): void {
    this.#state = afterSynced(this.#state, number, this.#now())
  }

  /** A pass ended in an error. */
  failed(): void {
    this.#state = afterFailed(this.#state, this.#now())
  }

  /** Sets whether load balancers may use this node; undefined while its Node object is unknown. */
  node(eligible: boolean | undefined, deleted = false): void {
    this.#state = afterNode(this.#state, { eligible, deleted })
  }

  /** Applies a new configuration. */
  syncPeriod(syncPeriodMs: number): void {
    this.#limits = limitsOf(syncPeriodMs)
  }

  get state(): HealthState {
    return this.#state
  }

  /** Health regardless of the Node: `serviceProxyHealthy` of health check node ports. */
  get healthy(): boolean {
    return isHealthy(this.#state, this.#limits, this.#options.clock.nowMs())
  }

  readiness(): HealthAnswer {
    const isEligible = this.#state.nodeEligible ?? this.#options.eligibleWithoutNode?.()
    const state = isEligible === true ? { ...this.#state, nodeEligible: true } : this.#state
    return readinessOf(state, this.#limits, this.#now())
  }

  liveness(): HealthAnswer {
    return livenessOf(this.#state, this.#limits, this.#now())
  }

  #now(): Moment {
    const { clock, wallMs } = this.#options
    return { monotonicMs: clock.nowMs(), wallMs: wallMs() }
  }
}
