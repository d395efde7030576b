import { type Octets, readU16be, u16be } from '../../base/octets.ts'
import * as nft from '../nft/constants.ts'
import { EXPRESSIONS } from '../nft/schema.ts'
import { attributesOf, comparedIn, type RawExpression } from './expressions.ts'
import * as xt from './rule.ts'
import { isZero } from './struct.ts'

/** Expressions of nf_tables that represent an iptables option: a load, an optional mask, and a comparison. */
export interface Condition {
  readonly load: Load
  /** Undefined where all bits are compared. */
  readonly mask: Octets | undefined
  /** Undefined where nothing is compared: `-i +`. */
  readonly test: Test | undefined
  readonly length: number
}

export type Load =
  | { readonly from: 'meta'; readonly key: number }
  | { readonly from: 'payload'; readonly base: number; readonly offset: number; readonly length: number }

/** A comparison. The range includes `from` and `to`; both are equal for a comparison with one value. */
export interface Test {
  readonly from: Octets
  readonly to: Octets
  readonly inverted: boolean
}

/** Recognizes a condition; undefined where there is no load, or an unknown expression follows it. */
export function conditionAt(expressions: readonly RawExpression[], at: number): Condition | undefined {
  const loaded = loadOf(expressions[at])
  if (loaded === undefined) return undefined
  const { load, register } = loaded
  let next = at + 1
  const mask = maskOf(expressions[next], register)
  if (mask !== undefined) next++
  const width = load.from === 'payload' ? load.length : undefined
  const test = testOf(expressions, next, { register, width })
  if (test !== undefined) return { load, mask, test, length: next + test.length - at }
  const isName = load.from === 'meta' && isInterface(load.key)
  // If a later expression compares the name, the load alone is not a complete condition.
  if (mask === undefined && isName && !READERS.includes(expressions[next]?.name ?? ''))
    return { load, mask, test: undefined, length: 1 }
  return undefined
}

function loadOf(
  one: RawExpression | undefined,
): { readonly load: Load; readonly register: number } | undefined {
  if (one?.name === 'meta') {
    const { dreg: register, key } = attributesOf(EXPRESSIONS.meta, one) ?? {}
    return register === undefined || key === undefined ? undefined : { load: { from: 'meta', key }, register }
  }
  if (one?.name !== 'payload') return undefined
  const { dreg: register, base, offset, length } = attributesOf(EXPRESSIONS.payload, one) ?? {}
  if (register === undefined || base === undefined || offset === undefined || length === undefined)
    return undefined
  return { load: { from: 'payload', base, offset, length }, register }
}

/** Returns the mask of a bitwise that only clears bits, in place. */
function maskOf(one: RawExpression | undefined, register: number): Octets | undefined {
  if (one?.name !== 'bitwise') return undefined
  const { sreg, dreg, op, mask, xor } = attributesOf(EXPRESSIONS.bitwise, one) ?? {}
  const isThis =
    sreg === register && dreg === register && (op ?? nft.NFT_BITWISE_MASK_XOR) === nft.NFT_BITWISE_MASK_XOR
  const flipped = xor?.value
  if (!isThis || flipped === undefined || !isZero(flipped, 0, flipped.length)) return undefined
  return mask?.value
}

interface Loaded {
  readonly register: number
  /** Number of bytes that were loaded, where it is known. */
  readonly width: number | undefined
}

/** A comparison; `limit` is the end that it limits, where it does not limit both. */
interface Comparison extends Test {
  readonly limit?: 'from' | 'to'
}

/** Reads the comparison at `at`: one value, a range, or two consecutive limits. */
function testOf(
  expressions: readonly RawExpression[],
  at: number,
  loaded: Loaded,
): (Test & { readonly length: number }) | undefined {
  const first = comparisonOf(expressions[at], loaded)
  if (first === undefined) return undefined
  const { limit, from, to, inverted } = first
  const second = limit === undefined ? undefined : comparisonOf(expressions[at + 1], loaded)
  if (second?.limit === undefined || second.limit === limit) return { from, to, inverted, length: 1 }
  return limit === 'from'
    ? { from, to: second.to, inverted, length: 2 }
    : { from: second.from, to, inverted, length: 2 }
}

function comparisonOf(one: RawExpression | undefined, { register, width }: Loaded): Comparison | undefined {
  const compared = one && comparedIn(one)
  if (compared?.register !== register) return undefined
  const { isRange, op, from, to } = compared
  if (from === '' || (width !== undefined && from.length !== width)) return undefined
  if (!isRange) return limitOf(op, from)
  const isKnown = op === xt.NFT_RANGE_EQ || op === xt.NFT_RANGE_NEQ
  return isKnown ? { from, to, inverted: op === xt.NFT_RANGE_NEQ } : undefined
}

function limitOf(op: number, value: Octets): Comparison | undefined {
  switch (op) {
    case nft.NFT_CMP_EQ:
    case nft.NFT_CMP_NEQ:
      return { from: value, to: value, inverted: op === nft.NFT_CMP_NEQ }
    case xt.NFT_CMP_LTE:
      return upTo(value)
    case xt.NFT_CMP_GTE:
      return upFrom(value)
    // Only ports are compared this way.
    case xt.NFT_CMP_GT:
      return upFrom(neighborOf(value, 1))
    case xt.NFT_CMP_LT:
      return upTo(neighborOf(value, -1))
    default:
      return undefined
  }
}

function upFrom(from: Octets | undefined): Comparison | undefined {
  return from === undefined
    ? undefined
    : { from, to: '\xff'.repeat(from.length), inverted: false, limit: 'from' }
}

function upTo(to: Octets | undefined): Comparison | undefined {
  return to === undefined ? undefined : { from: '\0'.repeat(to.length), to, inverted: false, limit: 'to' }
}

function neighborOf(port: Octets, step: number): Octets | undefined {
  if (port.length !== 2) return undefined
  const value = readU16be(port) + step
  return value < 0 || value > 0xffff ? undefined : u16be(value)
}

/** Expressions that read registers. */
const READERS: readonly string[] = ['cmp', 'range', 'bitwise', 'lookup', 'byteorder', 'dynset']

export function isInterface(key: number): boolean {
  return key === nft.NFT_META_IIFNAME || key === nft.NFT_META_OIFNAME
}
