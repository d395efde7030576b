import { assert } from '../../../base/assert.ts'
import type { Cancel, Clock } from '../../../base/clock.ts'

interface RateLimitOptions {
  /** Requests a second on average; 0 or less for no limit. */
  readonly qps: number
  /** Requests that may go at once after a quiet time; at least 1. */
  readonly burst: number
  readonly clock: Clock
}

/** What may leave the queue early. */
interface Leaver {
  onFail(run: () => void): Cancel
}

/** The daemon has a handful of requests under way; more in the queue than this is a loop that has run away. */
const WAITING_MAX = 1000

/**
 * A token bucket (client-go's flowcontrol): full at first, one request takes one token, watches included. A caller that finds
 * it empty waits in line.
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

  /** Resolves when it is the caller's turn, or as soon as the caller has failed. */
  async turn(leaver: Leaver): Promise<void> {
    if (this.#qps <= 0) return
    this.#fill()
    if (this.#waiting.size === 0 && this.#tokens >= 1) {
      this.#tokens--
      return
    }
    assert(this.#waiting.size < WAITING_MAX, `more than ${WAITING_MAX} requests wait for their turn`)
    await this.#wait(leaver)
  }

  #wait(leaver: Leaver): Promise<void> {
    return new Promise(resolve => {
      const go = (): void => {
        leave()
        resolve()
      }
      this.#waiting.add(go)
      const leave = leaver.onFail(() => {
        this.#waiting.delete(go)
        if (this.#waiting.size === 0) this.#stopTimer()
        resolve()
      })
      this.#arm()
    })
  }

  #arm(): void {
    if (this.#cancelTimer !== undefined || this.#waiting.size === 0) return
    const missing = Math.max(0, 1 - this.#tokens)
    this.#cancelTimer = this.#clock.after(Math.ceil((missing * 1000) / this.#qps), () => {
      this.#cancelTimer = undefined
      this.#serve()
    })
  }

  #serve(): void {
    this.#fill()
    for (const go of this.#waiting) {
      if (this.#tokens < 1) break
      this.#tokens--
      this.#waiting.delete(go)
      go()
    }
    this.#arm()
  }

  #fill(): void {
    const nowMs = this.#clock.nowMs()
    this.#tokens = Math.min(this.#burst, this.#tokens + ((nowMs - this.#filledMs) * this.#qps) / 1000)
    this.#filledMs = nowMs
  }

  #stopTimer(): void {
    this.#cancelTimer?.()
    this.#cancelTimer = undefined
  }
}
