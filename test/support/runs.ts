/**
 * How much of a long test each change has to pass. With KPROBE_RUNS=all, as in the stages `unit-rest` and `faults-rest`, all
 * of it is run.
 */
const IS_WHOLE = process.env.KPROBE_RUNS === 'all'
const SHARE = 1 / 6

/** How often something is tried, of `all` times that one would try it with time to spare. */
export function runs(all: number, share = SHARE): number {
  return IS_WHOLE ? all : Math.ceil(all * share)
}

/** Which of 1 to `count` are tried: each, or each sixth; those of six `shift`s are all. */
export function tried(count: number, shift = 0): readonly number[] {
  const stride = IS_WHOLE ? 1 : Math.round(1 / SHARE)
  return Array.from({ length: count }, (_, index) => index + 1).filter(
    number => (number + shift) % stride === 0,
  )
}
