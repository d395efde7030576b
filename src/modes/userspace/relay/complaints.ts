import type { Clock } from '../../../base/clock.ts'

const SILENCE_MS = 60_000

/** What was told lately: what recurs with every connection is told once a minute, whatever happens in between. */
export class Complaints {
  readonly #clock: Clock
  /** Oldest first. */
  readonly #toldAtMs = new Map<string, number>()

  constructor(clock: Clock) {
    this.#clock = clock
  }

  /** Whether it is to be told now; then it has been. */
  isDue(what: string): boolean {
    const nowMs = this.#clock.nowMs()
    for (const [each, toldAtMs] of this.#toldAtMs) {
      if (nowMs - toldAtMs < SILENCE_MS) break
      this.#toldAtMs.delete(each)
    }
    if (this.#toldAtMs.has(what)) return false
    this.#toldAtMs.set(what, nowMs)
    return true
  }
}
