import type { Clock } from '../base/clock.ts'

/** Minimum time between two lists, and its addition for each object; doubles each time. */
const REREAD_MS = 30_000
const REREAD_OBJECT_MS = 5
const REREAD_MS_MAX = 3_600_000

/** Spaces the lists that read again what was left out for want of memory: they may leave it out again. */
export class RereadPace {
  readonly #clock: Pick<Clock, 'nowMs'>
  /** Monotonic milliseconds. */
  #nextMs = 0
  #rereads = 0

  constructor(clock: Pick<Clock, 'nowMs'>) {
    this.#clock = clock
  }

  /** Milliseconds until the next list may begin. */
  get waitMs(): number {
    return Math.max(0, this.#nextMs - this.#clock.nowMs())
  }

  /** Counts a list of so many objects that begins now. */
  began(objects: number): void {
    const nowMs = this.#clock.nowMs()
    if (nowMs - this.#nextMs > REREAD_MS_MAX) this.#rereads = 0
    const distanceMs = (REREAD_MS + REREAD_OBJECT_MS * objects) * 2 ** this.#rereads++
    this.#nextMs = nowMs + Math.min(distanceMs, REREAD_MS_MAX)
  }

  /** Nothing is left out any more. */
  reset(): void {
    this.#rereads = 0
  }
}
