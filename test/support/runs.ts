/**
 * How much of a long test each change has to pass. With KPROBE_RUNS=all, as in the stages `unit-rest` and `faults-rest`, all
 * of it is run; with KPROBE_QUICK=1, as in `unit-quick`, a part of the part.
 */
const IS_WHOLE = process.env.KPROBE_RUNS === 'all'
const SHARE = 1 / 6
const QUICK_SHARE = 1 / 8

/** Set in `npm run ok`: `it.skipIf(IS_QUICK)` is for what takes long for what a change breaks in it. */
export const IS_QUICK = process.env.KPROBE_QUICK === '1'

/** How often something is tried, of `all` times that one would try it with time to spare. */
export function runs(all: number, share = SHARE): number {
  return IS_WHOLE ? all : Math.ceil(all * share * (IS_QUICK ? QUICK_SHARE : 1))
}

/** Which of 1 to `count` are tried: each, or such a share of them; those of `1 / share` values of `shift` are all. */
export function tried(count: number, shift = 0, share = SHARE): readonly number[] {
  const stride = IS_WHOLE ? 1 : Math.round(1 / share)
  return Array.from({ length: count }, (_, index) => index + 1).filter(
    number => (number + shift) % stride === 0,
  )
}
