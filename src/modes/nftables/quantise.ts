/** Counts up to this have a chain of their own each. */
const EXACT_MAX = 16

/**
 * The modulus for lists of `count` endpoints: `count` itself up to 16, else the next of eight steps per doubling (18,
 * 20, .. 32, 36, ..). Large lists then change their code at every step only, and few distinct chains exist for ever.
 */
export function quantise(count: number): number {
  if (count <= EXACT_MAX) return count
  const step = stepAt(count)
  return Math.ceil(count / step) * step
}

/**
 * The moduli that a chain for `quantised` rolls in turn until a slot exists; index 0 comes after all of them. Slots
 * are missing only above 16, by less than one step: rolling again keeps the bias of the last slots below 1.3 %.
 */
export function rolls(quantised: number): readonly number[] {
  if (quantised <= EXACT_MAX) return [quantised]
  return [quantised, quantised, quantised - stepAt(quantised)]
}

/** Distance between the quantised counts around `count`, for counts above 16. */
function stepAt(count: number): number {
  return 2 ** (Math.floor(Math.log2(count - 1)) - 3)
}
