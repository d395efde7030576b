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

  /** What it was broken off with. */
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
