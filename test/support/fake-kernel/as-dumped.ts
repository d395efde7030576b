import { type Octets, octetsFromBytes } from '../../../src/base/octets.ts'
import { NFT_REG_1, NFT_REG32_00, NFTA_RULE_EXPRESSIONS } from '../../../src/kernel/nft/constants.ts'
import { EXPRESSION_LIST, type ExpressionAttributes } from '../../../src/kernel/nft/schema.ts'
import { AttributeWriter, align4, type ByteView, ByteWriter, viewOf } from '../../../src/netlink/attribute.ts'
import { NLA_F_NESTED, NLA_HDRLEN } from '../../../src/netlink/constants.ts'
import { dumpedExtension } from './extensions.ts'

/** NFTA_RULE_EXPRESSIONS as the kernel lists it: none of its nests carries NLA_F_NESTED. */
export function dumpedExpressions(expressions: readonly ExpressionAttributes[], family: number): Octets {
  const out = new ByteWriter(512)
  const dumped = expressions.map(each =>
    each.tag === 'match' || each.tag === 'target' ? dumpedExtension(each, family) : asDumped(each),
  )
  EXPRESSION_LIST.write(new AttributeWriter(out), NFTA_RULE_EXPRESSIONS, dumped)
  const bytes = out.written()
  clearNestFlags(viewOf(bytes), 0, bytes.length)
  return octetsFromBytes(bytes.subarray(NLA_HDRLEN))
}

function clearNestFlags({ data, bytes }: ByteView, start: number, end: number): void {
  for (let at = start; at < end; at = align4(at + data.getUint16(at, true))) {
    const type = data.getUint16(at + 2, true)
    if ((type & NLA_F_NESTED) === 0) continue
    data.setUint16(at + 2, type & ~NLA_F_NESTED, true)
    clearNestFlags({ data, bytes }, at + NLA_HDRLEN, at + data.getUint16(at, true))
  }
}

/** How the kernel gives an expression back: with its own names for registers, and with defaults that nobody sent. */
function asDumped(expression: ExpressionAttributes): ExpressionAttributes {
  switch (expression.tag) {
    case 'unknown':
    case 'masq':
    case 'reject':
    case 'match':
    case 'target':
    case 'limit':
    case 'log':
      return expression
    case 'payload':
    case 'meta':
    case 'ct':
    case 'cmp':
    case 'immediate':
    case 'hash':
    case 'fib':
      return renamed(expression)
    case 'bitwise':
      return { tag: 'bitwise', data: { ...named(expression.data), op: 0 } }
    case 'lookup':
      return { tag: 'lookup', data: { flags: 0, ...named(expression.data) } }
    case 'numgen':
      return { tag: 'numgen', data: { offset: 0, ...named(expression.data) } }
    case 'nat':
      return { tag: 'nat', data: nat(expression.data) }
    case 'dynset':
      return { tag: 'dynset', data: { flags: 0, ...named(expression.data) } }
    case 'counter':
      return { tag: 'counter', data: { bytes: 0n, packets: 0n, ...expression.data } }
  }
}

function renamed<E extends { readonly data: object }>(expression: E): E {
  return { ...expression, data: named(expression.data) }
}

type Nat = Extract<ExpressionAttributes, { tag: 'nat' }>['data']

/** NF_NAT_RANGE_MAP_IPS and NF_NAT_RANGE_PROTO_SPECIFIED come of themselves. */
const RANGE_FLAGS = 3

function nat(data: Nat): Nat {
  const given = named(data)
  const { addressMin, addressMax = addressMin, portMin, portMax = portMin, flags = 0 } = given
  return { ...given, addressMax, portMax, flags: flags | RANGE_FLAGS }
}

const REGISTERS: ReadonlySet<string> = new Set([
  'dreg',
  'sreg',
  'keyReg',
  'dataReg',
  'addressMin',
  'addressMax',
  'portMin',
  'portMax',
])

/** nft_dump_register: every fourth 32-bit register is called by the 128-bit one it begins. */
function named<T extends object>(data: T): T {
  const copy = { ...data }
  for (const [field, value] of Object.entries(data)) {
    if (!REGISTERS.has(field) || typeof value !== 'number' || value < NFT_REG32_00) continue
    const index = value - NFT_REG32_00
    if (index % 4 === 0) Object.assign(copy, { [field]: NFT_REG_1 + index / 4 })
  }
  return copy
}
