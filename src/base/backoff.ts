/** Exponential delays with full jitter over the upper half: never less than half of the step, never above `maxMs`. */
export interface BackoffOptions {
  readonly minMs: number
  readonly maxMs: number
  /** Uniform in [0, 1). */
  readonly random: () => number
}

/** Delay before try number `failures` + 1, in milliseconds; `failures` counts from 1. */
export function backoffMs(failures: number, options: BackoffOptions): number {
  const step = Math.min(options.maxMs, options.minMs * 2 ** Math.min(failures - 1, 30))
  return step / 2 + (options.random() * step) / 2
}
