import type { Cancel, Clock } from '../../base/clock.ts'

/** One try at something, which can be broken off with the result that it then has, once. */
export class Attempt<R> {
  readonly #clock: Clock
  readonly #controller = new AbortController()
  readonly #timers = new Set<Cancel>()
  readonly beganMs: number
  #result: R | undefined

  constructor(clock: Clock) {
    this.#clock = clock
    this.beganMs = clock.nowMs()
  }

  get signal(): AbortSignal {
    return this.#controller.signal
  }

  get result(): R | undefined {
    return this.#result
  }

  breakOff(result?: R): void {
    if (this.signal.aborted) return
    this.#result = result
    this.#controller.abort()
  }

  /** Calls `run` then, unless the attempt has ended before. */
  after(delayMs: number, run: () => void): Cancel {
    const cancel = this.#clock.after(delayMs, run)
    this.#timers.add(cancel)
    return () => {
      cancel()
      this.#timers.delete(cancel)
    }
  }

  /** Gives back whatever it still holds at the server. */
  end(): void {
    this.#controller.abort()
    for (const cancel of this.#timers) cancel()
    this.#timers.clear()
  }
}

interface WatchBackoffOptions {
  readonly clock: Clock
  readonly random: () => number
}

const FIRST_MS = 800

/**
 * Delays between attempts at the API server, as those of client-go's reflector (0.8 s, 30 s, 2 min): they double up to
 * half a minute, and restart after two minutes without a failure.
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
    if (clock.nowMs() - this.#overAtMs >= 120_000) this.#stepMs = FIRST_MS
    // At most as much again, so that thousands of clients do not come back together.
    const delayMs = Math.max(atLeastMs, this.#stepMs * (1 + random()))
    this.#stepMs = Math.min(30_000, 2 * this.#stepMs)
    this.#overAtMs = clock.nowMs() + delayMs
    return delayMs
  }
}
