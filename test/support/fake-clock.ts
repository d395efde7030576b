import type { Cancel, Clock } from '../../src/base/clock.ts'

interface Timer {
  readonly atMs: number
  readonly order: number
  readonly run: () => void
}

/** Time that moves only when told to. */
export class FakeClock implements Clock {
  /** Processor time that the process has used so far. */
  spentMs = 0
  #nowMs = 0
  #order = 0
  readonly #timers = new Set<Timer>()

  nowMs(): number {
    return this.#nowMs
  }

  cpuMs(): number {
    return this.spentMs
  }

  after(delayMs: number, run: () => void): Cancel {
    const timer = { atMs: this.#nowMs + Math.max(0, delayMs), order: this.#order++, run }
    this.#timers.add(timer)
    return () => this.#timers.delete(timer)
  }

  breathe(): Promise<void> {
    return Promise.resolve()
  }

  get pending(): number {
    return this.#timers.size
  }

  /** Moves on by `ms`, running what falls due in its order, with all promises settled in between. */
  async advance(ms: number): Promise<void> {
    const endMs = this.#nowMs + ms
    await settle()
    for (let next = this.#next(endMs); next !== undefined; next = this.#next(endMs)) {
      this.#timers.delete(next)
      this.#nowMs = next.atMs
      next.run()
      await settle()
    }
    this.#nowMs = endMs
  }

  #next(endMs: number): Timer | undefined {
    let first: Timer | undefined
    for (const timer of this.#timers) {
      if (timer.atMs > endMs) continue
      if (
        first === undefined ||
        timer.atMs < first.atMs ||
        (timer.atMs === first.atMs && timer.order < first.order)
      )
        first = timer
    }
    return first
  }
}

/** Lets every promise that can settle do so, those that follow from `_act` among them. */
export function settle(_act?: unknown): Promise<void> {
  return new Promise(resolve => {
    setImmediate(resolve)
  })
}
