import type { Octets } from '../../base/octets.ts'
import { NFT_SET_CONCAT } from '../../kernel/nft/constants.ts'
import type { Element, ElementData, NftSet } from '../../kernel/nft/state.ts'
import { BeyondEvaluator } from './values.ts'

/* The intervals of a set, from its elements. */

/** Keys that find one element: both ends belong to it. */
export interface Range {
  readonly from: Octets
  readonly to: Octets
  /** Null for an element of a set. */
  readonly data: ElementData | null
  /** Each word of the key is within those of the ends; otherwise the key is, as a number. */
  readonly isConcatenated: boolean
}

/** Tests whether an interval of a long field is one of each word. A dump does not show where fields begin. */
function isPlain({ from, to }: Range): boolean {
  for (let at = 4; at < from.length; at += 4) {
    const [first, last] = [from.slice(at, at + 4), to.slice(at, at + 4)]
    const isOpen = from.slice(at - 4, at) !== to.slice(at - 4, at)
    if (isOpen && first !== last && (/[^\0]/.test(first) || /[^\xff]/.test(last))) return false
  }
  return true
}

/** Pairs the ends of intervals. An interval without an end lasts up to the next element, or up to the last key. */
export function rangesOf(elements: readonly Element[], { flags, keyLength }: NftSet): readonly Range[] {
  const isConcatenated = (flags & NFT_SET_CONCAT) !== 0
  const order = (its: Element) => `${its.key}${its.isEnd === true ? '\0' : '\x01'}`
  const sorted = elements.toSorted((a, b) => (order(a) < order(b) ? -1 : 1))
  return sorted.flatMap(({ key, keyEnd, isEnd, data = null }, index): readonly Range[] => {
    if (isEnd === true) return []
    const next = sorted[index + 1]?.key
    const last = next === undefined ? '\xff'.repeat(key.length) : before(next)
    const range = { from: key, to: keyEnd ?? (isConcatenated ? key : last), data, isConcatenated }
    if (isConcatenated && keyLength > 16 && !isPlain(range))
      throw new BeyondEvaluator('cannot trace such an interval of IPv6 addresses in a concatenation')
    return [range]
  })
}

function before(key: Octets): Octets {
  const zeros = /\0*$/.exec(key)?.[0].length ?? 0
  const at = key.length - zeros - 1
  return `${key.slice(0, at)}${String.fromCharCode(key.charCodeAt(at) - 1)}${'\xff'.repeat(zeros)}`
}
