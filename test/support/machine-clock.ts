import type { Cancel, Clock } from '../../src/base/clock.ts'

/** The clock of one machine: it has an origin of its own, and leaps when the machine was suspended. */
export class MachineClock implements Clock {
  readonly #time: Clock
  #aheadMs = 1e9

  constructor(time: Clock) {
    this.#time = time
  }

  nowMs(): number {
    return this.#time.nowMs() + this.#aheadMs
  }

  cpuMs(): number {
    return this.#time.cpuMs()
  }

  after(delayMs: number, run: () => void): Cancel {
    return this.#time.after(delayMs, run)
  }

  breathe(): Promise<void> {
    return this.#time.breathe()
  }

  leap(ms: number): void {
    this.#aheadMs += ms
  }
}
