import { bytesFromOctets, type Octets, octetsFromBytes, zeros } from '../../base/octets.ts'
import {
  AttributeWriter,
  align4,
  attributeLength,
  attributeType,
  type ByteView,
  ByteWriter,
  viewOf,
} from '../../netlink/attribute.ts'
import { NLA_HDRLEN, NLA_TYPE_MASK } from '../../netlink/constants.ts'
import { malformed, NetlinkError } from '../../netlink/errors.ts'
import {
  type AttributeSet,
  type Attributes,
  type Fields,
  readAttributes,
  type Tagged,
  unionOf,
} from '../../netlink/schema.ts'
import * as nft from '../nft/constants.ts'
import { EXPRESSION_FIELDS, EXPRESSIONS, RANGE } from '../nft/schema.ts'
import { NFT_CMP_GT, NFT_CMP_GTE, NFT_CMP_LT, NFT_CMP_LTE } from './rule.ts'

/**
 * Expressions of nf_tables as the kernel lists them: no flags on the types of attributes, attributes in the order of
 * the kernel's dump functions (net/netfilter/nft_*.c), registers as NFT_REG_1.
 */

export interface RawExpression {
  readonly name: string
  /** NFTA_EXPR_DATA: attributes. */
  readonly data: Octets
  /** The position among the bytes of a rule. */
  readonly place?: Place | undefined
}

const TABLES = { ...EXPRESSIONS, range: RANGE } as const
const EXPRESSION = unionOf(EXPRESSION_FIELDS, TABLES)

/** The kernel lists nests without a flag. */
class PlainWriter extends AttributeWriter {
  override openNest(type: number): void {
    this.open(type)
  }

  override octets(type: number, value: Octets): void {
    super.octets(type & NLA_TYPE_MASK, value)
  }
}

function expression(value: Tagged<typeof TABLES>): Octets {
  const out = new ByteWriter(256)
  EXPRESSION.write(new PlainWriter(out), nft.NFTA_LIST_ELEM, value)
  return octetsFromBytes(out.written())
}

export function rawExpression({ name, data }: RawExpression): Octets {
  return expression({ tag: 'unknown', name, octets: data })
}

const REGISTER = nft.NFT_REG_1

export function meta(key: number): Octets {
  return expression({ tag: 'meta', data: { key, dreg: REGISTER } })
}

export function payload(base: number, offset: number, length: number): Octets {
  return expression({ tag: 'payload', data: { dreg: REGISTER, base, offset, length } })
}

const PADDING = ['', '\0\0\0', '\0\0', '\0'] as const
/** Values that rules load or compare are at most as long as an address. */
const VALUE_LENGTH_MAX = 16
const CMP_OPS = [nft.NFT_CMP_EQ, nft.NFT_CMP_NEQ, NFT_CMP_LT, NFT_CMP_LTE, NFT_CMP_GT, NFT_CMP_GTE] as const

/** The bytes before the value, by operation and length: precomputed, because there are tens of thousands of rules. */
const CMP_HEADS: readonly (readonly Octets[])[] = CMP_OPS.map(op =>
  Array.from({ length: VALUE_LENGTH_MAX + 1 }, (_, length) => {
    const data = { sreg: REGISTER, op, data: { value: zeros(length) } }
    return withoutTail(expression({ tag: 'cmp', data }), length)
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
  return expression({ tag: 'range', data: { sreg: REGISTER, op, from: { value: from }, to: { value: to } } })
}

/** The bytes before and behind a mask, by its length: 4 (numbers, IPv4 addresses) or 16 (IPv6 addresses). */
const MASKED: ReadonlyMap<number, readonly string[]> = new Map(
  [4, VALUE_LENGTH_MAX].map(length => [length, aroundMask(length)]),
)

function aroundMask(length: number): readonly string[] {
  const mask = '\xff'.repeat(length)
  const registers = { sreg: REGISTER, dreg: REGISTER, length, op: nft.NFT_BITWISE_MASK_XOR }
  const data = { ...registers, mask: { value: mask }, xor: { value: zeros(length) } }
  return expression({ tag: 'bitwise', data }).split(mask)
}

export function masked(mask: Octets): Octets {
  return (MASKED.get(mask.length) ?? []).join(mask)
}

/** Encodes a verdict; `code` is NF_ACCEPT, NFT_RETURN and the like. */
export function verdict(code: number, chain?: string | undefined): Octets {
  const data = { verdict: { code, chain } }
  return expression({ tag: 'immediate', data: { dreg: nft.NFT_REG_VERDICT, data } })
}

/** iptables allows chain names of 28 bytes; verdicts with longer names are not precomputed. */
const CHAIN_LENGTH_USUAL = 28

function jumpHeads(code: number): readonly Octets[] {
  return Array.from({ length: CHAIN_LENGTH_USUAL + 1 }, (_, length) =>
    withoutTail(verdict(code, 'c'.repeat(length)), length + 1),
  )
}

const JUMP_HEADS = jumpHeads(nft.NFT_JUMP)
const GOTO_HEADS = jumpHeads(nft.NFT_GOTO)
/** A name's NUL, and padding. */
const NAME_ENDS = ['\0\0\0\0', '\0\0\0', '\0\0', '\0'] as const

/** Encodes a jump or goto; `octets` are the name of the chain in UTF-8. */
export function jump(code: typeof nft.NFT_JUMP | typeof nft.NFT_GOTO, octets: Octets): Octets {
  const head = (code === nft.NFT_JUMP ? JUMP_HEADS : GOTO_HEADS)[octets.length]
  if (head === undefined) return verdict(code, Buffer.from(octets, 'latin1').toString())
  return head + octets + (NAME_ENDS[octets.length & 3] ?? '')
}

export const ZERO_COUNTER = expression({ tag: 'counter', data: { bytes: 0n, packets: 0n } })

export function limit(perSecond: number, burst: number): Octets {
  const data = { rate: BigInt(perSecond), unit: 1n, burst, type: nft.NFT_LIMIT_PKTS, flags: 0 }
  return expression({ tag: 'limit', data })
}

/** Encodes a copy of the first `packetBytes` of a packet to an NFLOG group, at once. */
export function log(prefix: string, group: number, packetBytes: number): Octets {
  return expression({ tag: 'log', data: { prefix, group, snaplen: packetBytes, threshold: 1 } })
}

export function compat(tag: 'match' | 'target', name: string, revision: number, info: Octets): Octets {
  return expression({ tag, data: { name, revision, info } })
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
  const view = viewOf(bytesFromOctets(compiled))
  let at = 0
  try {
    while (at < compiled.length) {
      const end = at + attributeLength(view, at, compiled.length)
      expressions.push(expressionAt(compiled, view, { start: at + NLA_HDRLEN, end }))
      at = align4(end)
    }
  } catch (error) {
    if (!(error instanceof NetlinkError)) throw error
    expressions.push({ name: '', data: compiled.slice(at), place: undefined })
  }
  return expressions
}

interface Place {
  readonly view: ByteView
  readonly start: number
  readonly end: number
}

function expressionAt(compiled: Octets, view: ByteView, { start, end }: Omit<Place, 'view'>): RawExpression {
  let [name, data] = ['', '']
  let place = { view, start, end: start }
  for (let at = start; at < end; ) {
    const next = at + attributeLength(view, at, end)
    const type = attributeType(view, at)
    const from = at + NLA_HDRLEN
    if (type === EXPRESSION_FIELDS.tag[0]) name = compiled.slice(from, next - 1)
    else if (type === EXPRESSION_FIELDS.data[0]) {
      data = compiled.slice(from, next)
      place = { view, start: from, end: next }
    }
    at = align4(next)
  }
  if (name === '') throw malformed('an expression without a name', start)
  return { name, data, place }
}

/** Reads the attributes of an expression; undefined where its bytes are not attributes of the table. */
export function attributesOf<F extends Fields>(
  set: AttributeSet<F>,
  { data, place }: RawExpression,
): Attributes<F> | undefined {
  try {
    if (place !== undefined) return readAttributes(place.view, set, place)
    return readAttributes(viewOf(bytesFromOctets(data)), set, { start: 0, end: data.length })
  } catch (error) {
    if (error instanceof NetlinkError) return undefined
    throw error
  }
}

/** A comparison with a value, or with a range, which has other operations. */
interface Compared {
  readonly register: number
  readonly isRange: boolean
  /** NFT_CMP_* or NFT_RANGE_*. */
  readonly op: number
  readonly from: Octets
  /** As long as `from`. */
  readonly to: Octets
}

export function comparedIn(one: RawExpression): Compared | undefined {
  const isRange = one.name === 'range'
  const range = isRange ? attributesOf(RANGE, one) : undefined
  const {
    sreg,
    op,
    data: value,
  } = one.name === 'cmp' ? (attributesOf(EXPRESSIONS.cmp, one) ?? {}) : { ...range, data: range?.from }
  const from = value?.value
  const to = isRange ? range?.to?.value : from
  if (sreg === undefined || op === undefined || from === undefined || to?.length !== from.length)
    return undefined
  return { register: sreg, isRange, op, from, to }
}
