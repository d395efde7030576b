import { append } from '../../base/lists.ts'
import type { OwnedRule } from './scope-draft.ts'

interface SequencePlaces {
  /** The end of the chain that receives new entries. */
  readonly at: 'head' | 'end'
  /** Returns the entry's position in the chain; undefined for a new entry. */
  readonly positionOf: (entry: OwnedRule) => number | undefined
}

/**
 * Returns the existing entries on the wrong side of another entry of their sequence, or of the position of a new one.
 * They must be removed and inserted again with the new ones, in the wanted order.
 */
export function misplacedEntries(
  entries: readonly OwnedRule[],
  { at, positionOf }: SequencePlaces,
): readonly OwnedRule[] {
  const sequences = new Map<string, OwnedRule[]>()
  for (const entry of entries) {
    if (entry.sequence === undefined) continue
    append(sequences, `${entry.owner} ${entry.sequence}`, entry)
  }
  return [...sequences.values()].flatMap(sequence => {
    const sign = at === 'head' ? 1 : -1
    let next = Number.POSITIVE_INFINITY
    // Starts at the entry that is furthest from the position of new ones.
    return (at === 'head' ? sequence.toReversed() : sequence).filter(entry => {
      const position = positionOf(entry)
      const isRight = position !== undefined && sign * position < next
      next = isRight ? sign * position : Number.NEGATIVE_INFINITY
      return position !== undefined && !isRight
    })
  })
}
