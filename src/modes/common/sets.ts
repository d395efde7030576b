import { concatenatedType } from '../../kernel/nft/datatypes.ts'
import type { NftSet } from '../../kernel/nft/state.ts'

/** Declares a set, not a map, whose keys are the concatenation of fields of these types. */
export function plainSet(
  name: string,
  size: number,
  key: { types: readonly number[]; length: number },
): NftSet {
  return {
    name,
    flags: 0,
    keyType: concatenatedType(...key.types),
    keyLength: key.length,
    dataType: undefined,
    dataLength: undefined,
    size,
    timeoutMs: 0,
    userdata: '',
  }
}

interface Growth {
  /** The minimum size of a new set, so that small clusters grow without a replacement of the table. */
  readonly min: number
  /** The share, 0 to 1, above which a set gets a new size. */
  readonly full: number
  /** The factor by which a new set is larger than its number of elements; 2 by default. */
  readonly headroom?: number
}

const HEADROOM = 2

/**
 * Gives the size of a set of `count` elements: its present size while it is not full, otherwise a larger
 * power of two.
 */
export function sizeToHold(count: number, before: number | undefined, growth: Growth): number {
  const { min, full, headroom = HEADROOM } = growth
  if (before !== undefined && before > 0 && count <= before * full) return before
  return 2 ** Math.ceil(Math.log2(Math.max(min, count * headroom)))
}
