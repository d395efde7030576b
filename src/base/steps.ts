import type { Clock } from './clock.ts'

/**
 * A pure computation that offers to pause: it yields wherever stopping is harmless and returns its value at the end.
 * Callers decide whether to run it in one go or in slices between which the event loop breathes.
 */
export type Steps<T> = Generator<undefined, T, undefined>

/** Runs to the end without a pause. */
export function finish<T>(steps: Steps<T>): T {
  for (;;) {
    const step = steps.next()
    if (step.done === true) return step.value
  }
}

/**
 * How many items of a loop go between two offers to pause. So many of the heaviest, such as Services with their rules, take a
 * few milliseconds; for the lightest, an offer takes one percent of the time.
 */
const ITEMS = 256

/** Counts the items of a loop: `if (pauses.due()) yield`. */
export class Pauses {
  #left = ITEMS

  /** Tests whether it is time to offer a pause after these items. */
  due(items = 1): boolean {
    this.#left -= items
    if (this.#left > 0) return false
    this.#left = ITEMS
    return true
  }
}

export interface Slicing {
  /** Longest time to compute before yielding to the event loop, in milliseconds. */
  readonly sliceMs: number
  /** Monotonic milliseconds. */
  readonly nowMs: () => number
  /** Resolves once other work of the event loop has had its turn. */
  readonly breathe: () => Promise<void>
}

/** A slice of time for a loop that is asynchronous in any case: `if (slice.isOver) await slice.next()`. */
export class Slice {
  readonly #slicing: Slicing
  #endMs: number

  constructor(slicing: Slicing) {
    this.#slicing = slicing
    this.#endMs = slicing.nowMs() + slicing.sliceMs
  }

  get isOver(): boolean {
    return this.#slicing.nowMs() >= this.#endMs
  }

  /** Lets other work of the event loop go first, and begins the next slice. */
  async next(): Promise<void> {
    await this.#slicing.breathe()
    this.#endMs = this.#slicing.nowMs() + this.#slicing.sliceMs
  }
}

/** Runs to the end in slices. Errors thrown by the computation reject the promise. */
export async function finishInSlices<T>(steps: Steps<T>, slicing: Slicing): Promise<T> {
  const slice = new Slice(slicing)
  for (;;) {
    const step = steps.next()
    if (step.done === true) return step.value
    if (slice.isOver) await slice.next()
  }
}

const SLICE_MS = 5

/** Slices that are short enough for health requests in between, by this clock. */
export function slicingOf(clock: Pick<Clock, 'nowMs' | 'breathe'>): Slicing {
  return { sliceMs: SLICE_MS, nowMs: () => clock.nowMs(), breathe: () => clock.breathe() }
}
