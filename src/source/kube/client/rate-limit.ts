import { type Clock, pause } from '../../../base/clock.ts'

interface RateLimitOptions {
  /** Requests a second on average; 0 or less for no limit. */
  readonly qps: number
  /** Requests that may go at once after a quiet time; at least 1. */
  readonly burst: number
  readonly clock: Clock
}

/** A token bucket (client-go's flowcontrol): full at first, one request takes one token, watches included. */
export class RateLimit {
  readonly #clock: Clock
  readonly #tokenMs: number
  readonly #fullMs: number
  /** The time at which the bucket is full again. */
  #fullAtMs = Number.NEGATIVE_INFINITY

  constructor({ qps, burst, clock }: RateLimitOptions) {
    this.#clock = clock
    this.#tokenMs = qps <= 0 ? 0 : 1_000 / qps
    this.#fullMs = Math.max(1, burst) * this.#tokenMs
  }

  /** Takes a token, and waits until there is one. */
  async turn(signal: AbortSignal): Promise<void> {
    const nowMs = this.#clock.nowMs()
    this.#fullAtMs = Math.max(nowMs, this.#fullAtMs) + this.#tokenMs
    const waitMs = Math.ceil(this.#fullAtMs - this.#fullMs - nowMs)
    if (waitMs > 0) await pause(this.#clock, waitMs, signal)
  }
}
