import { NFT_REG_1, NFT_REG32_00 } from '../../../src/kernel/nft/constants.ts'
import type { ExpressionAttributes } from '../../../src/kernel/nft/schema.ts'

/** How the kernel gives an expression back: with its own names for registers, and with defaults that nobody sent. */
export function asDumped(expression: ExpressionAttributes): ExpressionAttributes {
  switch (expression.tag) {
    case 'unknown':
      return expression
    case 'payload':
      return { tag: 'payload', data: named(expression.data) }
    case 'meta':
      return { tag: 'meta', data: named(expression.data) }
    case 'ct':
      return { tag: 'ct', data: named(expression.data) }
    case 'cmp':
      return { tag: 'cmp', data: named(expression.data) }
    case 'bitwise':
      return { tag: 'bitwise', data: { ...named(expression.data), op: 0 } }
    case 'lookup':
      return { tag: 'lookup', data: { flags: 0, ...named(expression.data) } }
    case 'immediate':
      return { tag: 'immediate', data: named(expression.data) }
    case 'numgen':
      return { tag: 'numgen', data: { offset: 0, ...named(expression.data) } }
    case 'nat':
      return { tag: 'nat', data: nat(expression.data) }
    case 'masq':
      return { tag: 'masq', data: expression.data }
    case 'reject':
      return { tag: 'reject', data: expression.data }
    case 'fib':
      return { tag: 'fib', data: named(expression.data) }
    case 'dynset':
      return { tag: 'dynset', data: { flags: 0, ...named(expression.data) } }
    case 'match':
    case 'target':
      return expression
    case 'counter':
      return { tag: 'counter', data: { bytes: 0n, packets: 0n, ...expression.data } }
  }
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
