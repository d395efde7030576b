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

export interface Slicing {
  /** Longest time to compute before yielding to the event loop, in milliseconds. */
  readonly sliceMs: number
  /** Monotonic milliseconds. */
  readonly nowMs: () => number
  /** Resolves once other work of the event loop has had its turn. */
  readonly breathe: () => Promise<void>
}

/** Runs to the end in slices. Errors thrown by the computation reject the promise. */
export async function finishInSlices<T>(steps: Steps<T>, slicing: Slicing): Promise<T> {
  let sliceEnd = slicing.nowMs() + slicing.sliceMs
  for (;;) {
    const step = steps.next()
    if (step.done === true) return step.value
    if (slicing.nowMs() >= sliceEnd) {
      await slicing.breathe()
      sliceEnd = slicing.nowMs() + slicing.sliceMs
    }
  }
}

/** Short enough for health requests in between. */
const SLICE_MS = 8

/** Slices short enough for health requests in between, by this clock. */
export function slicingOf(clock: Clock): Slicing {
  return { sliceMs: SLICE_MS, nowMs: () => clock.nowMs(), breathe: () => clock.breathe() }
}
