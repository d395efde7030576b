import { concatenatedType } from '../../kernel/nft/datatypes.ts'
import type { NftSet } from '../../kernel/nft/state.ts'

/** A set, not a map, whose keys are fields of these types one behind the other. */
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
  /** Of new sets at least, so that small clusters grow without a reload. */
  readonly min: number
  /** 0 to 1: fuller than this a set gets a new size. */
  readonly full: number
  /** How many times its elements a new set has room for; 2 unless told. */
  readonly headroom?: number
}

const HEADROOM = 2

/** The size of a set of `count` elements: the one it has while that is not full, else a power of two with room for more. */
export function sizeToHold(count: number, before: number | undefined, growth: Growth): number {
  const { min, full, headroom = HEADROOM } = growth
  if (before !== undefined && before > 0 && count <= before * full) return before
  return 2 ** Math.ceil(Math.log2(Math.max(min, count * headroom)))
}
