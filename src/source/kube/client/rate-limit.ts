import type { Cancel, Clock } from '../../../base/clock.ts'
import { assert } from '../../../base/errors.ts'

interface RateLimitOptions {
  /** Requests a second on average; 0 or less for no limit. */
  readonly qps: number
  /** Requests that may go at once after a quiet time; at least 1. */
  readonly burst: number
  readonly clock: Clock
}

/** A relay has 1,000 reviews of tokens under way, a daemon a handful of requests; more in line is a runaway loop. */
const WAITING_MAX = 2_000

/**
 * A token bucket (client-go's flowcontrol): full at first, one request takes one token, watches included. A caller that
 * finds it empty waits in line.
 */
export class RateLimit {
  readonly #qps: number
  readonly #burst: number
  readonly #clock: Clock
  readonly #waiting = new Set<() => void>()
  #tokens: number
  #filledMs: number
  #cancelTimer: Cancel | undefined

  constructor({ qps, burst, clock }: RateLimitOptions) {
    this.#qps = qps
    this.#burst = Math.max(1, burst)
    this.#clock = clock
    this.#tokens = this.#burst
    this.#filledMs = clock.nowMs()
  }

  /** Resolves when it is the caller's turn, or as soon as the caller has failed: it takes no token then. */
  async turn(caller: { readonly onFail: (run: () => void) => void }): Promise<void> {
    if (this.#qps <= 0) return
    assert(this.#waiting.size < WAITING_MAX, `more than ${WAITING_MAX} requests wait for their turn`)
    await new Promise<void>(resolve => {
      this.#waiting.add(resolve)
      caller.onFail(() => {
        this.#waiting.delete(resolve)
        this.#serve()
        resolve()
      })
      this.#serve()
    })
  }

  #serve(): void {
    const nowMs = this.#clock.nowMs()
    this.#tokens = Math.min(this.#burst, this.#tokens + ((nowMs - this.#filledMs) * this.#qps) / 1000)
    this.#filledMs = nowMs
    for (const go of this.#waiting) {
      if (this.#tokens < 1) break
      this.#tokens--
      this.#waiting.delete(go)
      go()
    }
    if (this.#waiting.size === 0) this.#stopTimer()
    else
      this.#cancelTimer ??= this.#clock.after(Math.ceil(((1 - this.#tokens) * 1000) / this.#qps), () => {
        this.#cancelTimer = undefined
        this.#serve()
      })
  }

  #stopTimer(): void {
    this.#cancelTimer?.()
    this.#cancelTimer = undefined
  }
}
