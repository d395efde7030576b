import type { OwnedRule } from './scope-draft.ts'

interface SequencePlaces {
  /** Where new entries come to stand. */
  readonly at: 'head' | 'end'
  /** Among what is there; undefined for one that comes. */
  readonly positionOf: (entry: OwnedRule) => number | undefined
}

/**
 * Entries that are there, and on the wrong side of another of their sequence, or of where it comes to stand: they have to
 * be put there anew, with those that come, in the order in which all are asked for.
 */
export function misplacedEntries(
  entries: readonly OwnedRule[],
  { at, positionOf }: SequencePlaces,
): readonly OwnedRule[] {
  const sequences = new Map<string, OwnedRule[]>()
  for (const entry of entries) {
    if (entry.sequence === undefined) continue
    const key = `${entry.owner} ${entry.sequence}`
    const same = sequences.get(key)
    if (same === undefined) sequences.set(key, [entry])
    else same.push(entry)
  }
  return [...sequences.values()].flatMap(sequence => {
    const sign = at === 'head' ? 1 : -1
    let next = Number.POSITIVE_INFINITY
    // From the one that is furthest from where new ones come.
    return (at === 'head' ? sequence.toReversed() : sequence).filter(entry => {
      const position = positionOf(entry)
      const isRight = position !== undefined && sign * position < next
      next = isRight ? sign * position : Number.NEGATIVE_INFINITY
      return position !== undefined && !isRight
    })
  })
}
