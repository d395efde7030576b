/** Few things may well go all at once. */
const HELD_MIN = 10

/** Whether so much would go at once that an answer which lacks it is asked for a second time. */
export function isMostGone(held: number, gone: number): boolean {
  return held >= HELD_MIN && gone * 2 > held
}
