import type { Clock } from '../../base/clock.ts'

interface WatchBackoffOptions {
  readonly clock: Clock
  /** Uniform in [0, 1). */
  readonly random: () => number
}

const FIRST_MS = 800
const FACTOR = 2
const STEP_MS_MAX = 30_000
/** A delay is its step and at most as much again, so that thousands of clients do not come back together. */
const JITTER = 1
const HEALTHY_MS = 120_000

/**
 * Delays between attempts at the API server, as those of client-go's reflector: they double, and begin anew after two
 * minutes without a failure.
 */
export class WatchBackoff {
  readonly #options: WatchBackoffOptions
  #stepMs = FIRST_MS
  /** The time at which the last delay ends. */
  #overAtMs = Number.NEGATIVE_INFINITY

  constructor(options: WatchBackoffOptions) {
    this.#options = options
  }

  /** Milliseconds until the next attempt, now that one has failed; at least `atLeastMs`. */
  nextMs(atLeastMs = 0): number {
    const { clock, random } = this.#options
    if (clock.nowMs() - this.#overAtMs >= HEALTHY_MS) this.#stepMs = FIRST_MS
    const delayMs = Math.max(atLeastMs, this.#stepMs * (1 + JITTER * random()))
    this.#stepMs = Math.min(STEP_MS_MAX, this.#stepMs * FACTOR)
    this.#overAtMs = clock.nowMs() + delayMs
    return delayMs
  }
}
