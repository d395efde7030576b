import { type Octets, readU32be, u16be, u32be, zeros } from '../../base/octets.ts'
import * as nft from '../nft/constants.ts'
import {
  NFT_CMP_GT,
  NFT_CMP_GTE,
  NFT_CMP_LT,
  NFT_CMP_LTE,
  NFTA_RANGE_FROM_DATA,
  NFTA_RANGE_OP,
  NFTA_RANGE_SREG,
  NFTA_RANGE_TO_DATA,
} from './constants.ts'

/**
 * Expressions of nf_tables as the kernel lists them: no flags on the types of attributes, attributes in the order of
 * the kernel's dump functions (net/netfilter/nft_*.c), registers as NFT_REG_1.
 */

export interface RawExpression {
  readonly name: string
  /** NFTA_EXPR_DATA: attributes. */
  readonly data: Octets
}

const HEADER = 4
const PADDING = ['', '\0\0\0', '\0\0', '\0'] as const
const TYPE_MASK = 0x3fff

function attribute(type: number, payload: Octets): Octets {
  const length = payload.length + HEADER
  return (
    String.fromCharCode(length & 255, length >>> 8, type & 255, type >>> 8) +
    payload +
    (PADDING[payload.length & 3] ?? '')
  )
}

function number(type: number, value: number): Octets {
  return `\x08\0${String.fromCharCode(type & 255, type >>> 8)}${u32be(value)}`
}

/** Encodes one element of NFTA_RULE_EXPRESSIONS. */
export function expression(name: string, data: Octets): Octets {
  const body = attribute(nft.NFTA_EXPR_NAME, `${name}\0`) + attribute(nft.NFTA_EXPR_DATA, data)
  return attribute(nft.NFTA_LIST_ELEM, body)
}

const REGISTER = nft.NFT_REG_1

export function meta(key: number): Octets {
  return expression('meta', number(nft.NFTA_META_KEY, key) + number(nft.NFTA_META_DREG, REGISTER))
}

export function payload(base: number, offset: number, length: number): Octets {
  return expression(
    'payload',
    number(nft.NFTA_PAYLOAD_DREG, REGISTER) +
      number(nft.NFTA_PAYLOAD_BASE, base) +
      number(nft.NFTA_PAYLOAD_OFFSET, offset) +
      number(nft.NFTA_PAYLOAD_LEN, length),
  )
}

function value(type: number, octets: Octets): Octets {
  return attribute(type, attribute(nft.NFTA_DATA_VALUE, octets))
}

/** Values that rules load or compare are at most as long as an address. */
const VALUE_LENGTH_MAX = 16
const CMP_OPS = [nft.NFT_CMP_EQ, nft.NFT_CMP_NEQ, NFT_CMP_LT, NFT_CMP_LTE, NFT_CMP_GT, NFT_CMP_GTE] as const

/** The bytes before the value, by operation and length: precomputed, because there are tens of thousands of rules. */
const CMP_HEADS: readonly (readonly Octets[])[] = CMP_OPS.map(op =>
  Array.from({ length: VALUE_LENGTH_MAX + 1 }, (_, length) => {
    const data = number(nft.NFTA_CMP_SREG, REGISTER) + number(nft.NFTA_CMP_OP, op)
    return withoutTail(expression('cmp', data + value(nft.NFTA_CMP_DATA, zeros(length))), length)
  }),
)

/** Encodes a comparison; `op` is NFT_CMP_*, and `octets` has at most 16 bytes. */
export function cmp(op: number, octets: Octets): Octets {
  return (CMP_HEADS[op]?.[octets.length] ?? '') + octets + (PADDING[octets.length & 3] ?? '')
}

/** Removes the last attribute's payload of this length, and its padding. */
function withoutTail(octets: Octets, length: number): Octets {
  return octets.slice(0, octets.length - ((length + 3) & ~3))
}

/** Encodes a range comparison; `op` is NFT_RANGE_*. */
export function range(op: number, from: Octets, to: Octets): Octets {
  const data = number(NFTA_RANGE_SREG, REGISTER) + number(NFTA_RANGE_OP, op)
  return expression('range', data + value(NFTA_RANGE_FROM_DATA, from) + value(NFTA_RANGE_TO_DATA, to))
}

export function masked(mask: Octets): Octets {
  return expression(
    'bitwise',
    number(nft.NFTA_BITWISE_SREG, REGISTER) +
      number(nft.NFTA_BITWISE_DREG, REGISTER) +
      number(nft.NFTA_BITWISE_LEN, mask.length) +
      number(nft.NFTA_BITWISE_OP, nft.NFT_BITWISE_MASK_XOR) +
      value(nft.NFTA_BITWISE_MASK, mask) +
      value(nft.NFTA_BITWISE_XOR, zeros(mask.length)),
  )
}

/** Encodes a verdict; `code` is NF_ACCEPT, NFT_RETURN and the like. */
export function verdict(code: number, chain?: Octets | undefined): Octets {
  const target = chain === undefined ? '' : attribute(nft.NFTA_VERDICT_CHAIN, `${chain}\0`)
  const body = attribute(nft.NFTA_DATA_VERDICT, number(nft.NFTA_VERDICT_CODE, code) + target)
  const data = number(nft.NFTA_IMMEDIATE_DREG, nft.NFT_REG_VERDICT) + attribute(nft.NFTA_IMMEDIATE_DATA, body)
  return expression('immediate', data)
}

/** iptables allows chain names of 28 bytes; verdicts with longer names are not precomputed. */
const CHAIN_LENGTH_USUAL = 28

function jumpHeads(code: number): readonly Octets[] {
  return Array.from({ length: CHAIN_LENGTH_USUAL + 1 }, (_, length) =>
    withoutTail(verdict(code, zeros(length)), length + 1),
  )
}

const JUMP_HEADS = jumpHeads(nft.NFT_JUMP)
const GOTO_HEADS = jumpHeads(nft.NFT_GOTO)
/** A name's NUL, and padding. */
const NAME_ENDS = ['\0\0\0\0', '\0\0\0', '\0\0', '\0'] as const

export function jump(code: typeof nft.NFT_JUMP | typeof nft.NFT_GOTO, chain: Octets): Octets {
  const head = (code === nft.NFT_JUMP ? JUMP_HEADS : GOTO_HEADS)[chain.length]
  if (head === undefined) return verdict(code, chain)
  return head + chain + (NAME_ENDS[chain.length & 3] ?? '')
}

export const ZERO_COUNTER = expression(
  'counter',
  attribute(nft.NFTA_COUNTER_BYTES, zeros(8)) + attribute(nft.NFTA_COUNTER_PACKETS, zeros(8)),
)

/** Encodes a limit of packets a second. */
export function limit(perSecond: number, burst: number): Octets {
  const data =
    attribute(nft.NFTA_LIMIT_RATE, zeros(4) + u32be(perSecond)) +
    attribute(nft.NFTA_LIMIT_UNIT, zeros(4) + u32be(1)) +
    number(nft.NFTA_LIMIT_BURST, burst) +
    number(nft.NFTA_LIMIT_TYPE, nft.NFT_LIMIT_PKTS) +
    number(nft.NFTA_LIMIT_FLAGS, 0)
  return expression('limit', data)
}

/** Encodes a copy of the first `packetBytes` of a packet to an NFLOG group, at once. */
export function log(prefix: Octets, group: number, packetBytes: number): Octets {
  const data =
    attribute(nft.NFTA_LOG_PREFIX, `${prefix}\0`) +
    attribute(nft.NFTA_LOG_GROUP, u16be(group)) +
    number(nft.NFTA_LOG_SNAPLEN, packetBytes) +
    attribute(nft.NFTA_LOG_QTHRESHOLD, u16be(1))
  return expression('log', data)
}

/** Encodes nft_compat's expression; NFTA_TARGET_* have the numbers of NFTA_MATCH_*. */
export function compat(kind: 'match' | 'target', name: string, revision: number, info: Octets): Octets {
  return expression(
    kind,
    attribute(nft.NFTA_MATCH_NAME, `${name}\0`) +
      number(nft.NFTA_MATCH_REV, revision) +
      attribute(nft.NFTA_MATCH_INFO, info),
  )
}

/** Encodes the bytes before the structure in compat(): equal for all structures of this size, a multiple of 4. */
export function compatHead(
  kind: 'match' | 'target',
  { name, revision, size }: { readonly name: string; readonly revision: number; readonly size: number },
): Octets {
  return compat(kind, name, revision, zeros(size)).slice(0, -size)
}

/** Splits a rule into expressions. Trailing bytes that are not an expression become the last one, without a name. */
export function splitExpressions(compiled: Octets): readonly RawExpression[] {
  const expressions: RawExpression[] = []
  let at = 0
  while (at < compiled.length) {
    const end = endOfAttribute(compiled, at, compiled.length)
    const found = end === undefined ? undefined : rawExpression(compiled, at + HEADER, end)
    if (end === undefined || found === undefined) {
      expressions.push({ name: '', data: compiled.slice(at) })
      break
    }
    expressions.push(found)
    at = (end + 3) & ~3
  }
  return expressions
}

function rawExpression(octets: Octets, start: number, end: number): RawExpression | undefined {
  let name: string | undefined
  let data = ''
  const whole = forEachIn(octets, start, end, (type, from, to) => {
    if (type === nft.NFTA_EXPR_NAME) name = octets.slice(from, to - 1)
    else if (type === nft.NFTA_EXPR_DATA) data = octets.slice(from, to)
  })
  return whole && name !== undefined && name !== '' ? { name, data } : undefined
}

/** Attributes by their numbers; undefined where the bytes are not attributes. */
type AttributesRead = readonly (Octets | undefined)[]

export function attributesOf(octets: Octets): AttributesRead | undefined {
  const found: (Octets | undefined)[] = []
  const whole = forEachIn(octets, 0, octets.length, (type, from, to) => {
    if (type <= ATTRIBUTE_MAX) found[type] = octets.slice(from, to)
  })
  return whole ? found : undefined
}

/** No expression has more; the limit bounds the memory for invalid bytes. */
const ATTRIBUTE_MAX = 32

/** Reads a number of 4 bytes; undefined for any other length. */
export function numberIn(attributes: AttributesRead, type: number): number | undefined {
  const octets = attributes[type]
  return octets?.length === 4 ? readU32be(octets) : undefined
}

/** Reads NFTA_DATA_VALUE of the data in attribute `type`. */
export function valueIn(attributes: AttributesRead, type: number): Octets | undefined {
  const octets = attributes[type]
  return octets === undefined ? undefined : attributesOf(octets)?.[nft.NFTA_DATA_VALUE]
}

function forEachIn(
  octets: Octets,
  start: number,
  end: number,
  visit: (type: number, start: number, end: number) => void,
): boolean {
  let at = start
  while (at < end) {
    const to = endOfAttribute(octets, at, end)
    if (to === undefined) return false
    visit((octets.charCodeAt(at + 2) | (octets.charCodeAt(at + 3) << 8)) & TYPE_MASK, at + HEADER, to)
    at = (to + 3) & ~3
  }
  return true
}

function endOfAttribute(octets: Octets, at: number, end: number): number | undefined {
  if (end - at < HEADER) return undefined
  const length = octets.charCodeAt(at) | (octets.charCodeAt(at + 1) << 8)
  return length < HEADER || length > end - at ? undefined : at + length
}
