import { unreachable } from '../../base/errors.ts'
import type { Octets } from '../../base/octets.ts'
import type { ValuesOf } from '../../netlink/schema.ts'
import * as nft from './constants.ts'
import { type IndexOfIpset, ipsetMatchOf, matchAttributesOf, type NameOfIpset } from './ipset-match.ts'
import { type DATA, EXPRESSION, type EXPRESSIONS, type ExpressionAttributes } from './schema.ts'
import type { Expression, Verdict } from './state.ts'

type Values<Name extends keyof typeof EXPRESSIONS> = ValuesOf<(typeof EXPRESSIONS)[Name]>

const CMP_OPS = { eq: nft.NFT_CMP_EQ, neq: nft.NFT_CMP_NEQ } as const
const DYNSET_OPS = {
  add: nft.NFT_DYNSET_OP_ADD,
  update: nft.NFT_DYNSET_OP_UPDATE,
  delete: nft.NFT_DYNSET_OP_DELETE,
} as const
/** Each logged packet is sent at once. */
const LOG_THRESHOLD = 1
const NAT_FAMILIES = { ip: nft.NFPROTO_IPV4, ip6: nft.NFPROTO_IPV6 } as const

/** Returns the attributes that create `expression` in the kernel. Throws NetlinkError for an ipset without a number. */
export function attributesOf(expression: Expression, indexOf?: IndexOfIpset): ExpressionAttributes {
  switch (expression.kind) {
    case 'payload': {
      const { base, offset, length, dreg } = expression
      return { tag: 'payload', data: { dreg: register(dreg), base, offset, length } }
    }
    case 'meta':
      return { tag: 'meta', data: { key: expression.key, dreg: register(expression.dreg) } }
    case 'meta-set':
      return { tag: 'meta', data: { key: expression.key, sreg: register(expression.sreg) } }
    case 'ct':
      return { tag: 'ct', data: { key: expression.key, dreg: register(expression.dreg) } }
    case 'cmp': {
      const { sreg, op, data } = expression
      return { tag: 'cmp', data: { sreg: register(sreg), op: CMP_OPS[op], data: { value: data } } }
    }
    case 'numgen': {
      const { modulus, offset = 0, dreg } = expression
      return { tag: 'numgen', data: { dreg: register(dreg), modulus, type: nft.NFT_NG_RANDOM, offset } }
    }
    case 'fib': {
      const { flags, dreg } = expression
      return { tag: 'fib', data: { dreg: register(dreg), result: nft.NFT_FIB_RESULT_ADDRTYPE, flags } }
    }
    case 'verdict': {
      const data = { verdict: expression.verdict }
      return { tag: 'immediate', data: { dreg: nft.NFT_REG_VERDICT, data } }
    }
    case 'masquerade':
      return { tag: 'masq', data: { flags: expression.flags === 0 ? undefined : expression.flags } }
    case 'reject':
      return { tag: 'reject', data: { type: nft.NFT_REJECT_ICMP_UNREACH, code: expression.code } }
    case 'counter':
      return { tag: 'counter', data: {} }
    case 'limit': {
      const { perSecond, burst } = expression
      const type = nft.NFT_LIMIT_PKTS
      return { tag: 'limit', data: { rate: BigInt(perSecond), unit: 1n, burst, type, flags: 0 } }
    }
    case 'log': {
      const { group, prefix, packetBytes: snaplen } = expression
      return { tag: 'log', data: { group, prefix, snaplen, threshold: LOG_THRESHOLD } }
    }
    case 'ipset':
      return { tag: 'match', data: matchAttributesOf(expression, indexOf) }
    case 'match':
    case 'target': {
      const { kind, name, revision, info } = expression
      return { tag: kind, data: { name, revision, info } }
    }
    case 'unknown':
      return { tag: 'unknown', name: expression.name, octets: expression.data }
    default:
      return compoundAttributes(expression)
  }
}

type Compound = Extract<Expression, { readonly kind: 'bitwise' | 'lookup' | 'dnat' | 'dynset' }>

function compoundAttributes(expression: Compound): ExpressionAttributes {
  switch (expression.kind) {
    case 'bitwise': {
      const { sreg, dreg, mask, xor } = expression
      const registers = { sreg: register(sreg), dreg: register(dreg), length: mask.length }
      return { tag: 'bitwise', data: { ...registers, mask: { value: mask }, xor: { value: xor } } }
    }
    case 'lookup': {
      const { set, sreg, inverted } = expression
      const dreg = expression.dreg === 'verdict' ? nft.NFT_REG_VERDICT : optionalRegister(expression.dreg)
      const flags = inverted ? nft.NFT_LOOKUP_F_INV : undefined
      return { tag: 'lookup', data: { set, sreg: register(sreg), dreg, flags } }
    }
    case 'dnat': {
      const addressMin = register(expression.addressReg)
      const portMin = optionalRegister(expression.portReg)
      return {
        tag: 'nat',
        data: { type: nft.NFT_NAT_DNAT, family: NAT_FAMILIES[expression.family], addressMin, portMin },
      }
    }
    case 'dynset': {
      const { set, op, keyReg, dataReg, timeoutMs } = expression
      const registers = { keyReg: register(keyReg), dataReg: optionalRegister(dataReg) }
      const timeout = timeoutMs === 0 ? undefined : BigInt(timeoutMs)
      return { tag: 'dynset', data: { set, op: DYNSET_OPS[op], ...registers, timeout } }
    }
  }
}

/**
 * Loads octets into registers. Such an expression reads back as `unknown`, as those of other programs do: kprobe's own
 * rules about Services have none.
 */
export function constant(dreg: number, value: Octets): Expression {
  const { name, octets } = EXPRESSION.asOctets({
    tag: 'immediate',
    data: { dreg: register(dreg), data: { value } },
  })
  return { kind: 'unknown', name, data: octets }
}

function register(number: number): number {
  return nft.NFT_REG32_00 + number
}

function optionalRegister(number: number | undefined): number | undefined {
  return number === undefined ? undefined : register(number)
}

/**
 * Decodes an expression of a dump. It drops the defaults that the kernel adds (flags of 0, the maximum of a range, a
 * counter's counts). An expression that our types cannot represent becomes `unknown`.
 */
export function expressionOf(attributes: ExpressionAttributes, nameOf?: NameOfIpset): Expression {
  const ipset = attributes.tag === 'match' ? ipsetMatchOf(attributes.data, nameOf) : undefined
  const known = ipset ?? knownExpression(attributes)
  if (known !== undefined) return known
  const { name, octets } = EXPRESSION.asOctets(attributes)
  return { kind: 'unknown', name, data: octets }
}

function knownExpression(attributes: ExpressionAttributes): Expression | undefined {
  switch (attributes.tag) {
    case 'payload':
      return payloadOf(attributes.data)
    case 'meta':
      return metaOf(attributes.data)
    case 'ct':
      return ctOf(attributes.data)
    case 'cmp':
      return cmpOf(attributes.data)
    case 'bitwise':
      return bitwiseOf(attributes.data)
    case 'lookup':
      return lookupOf(attributes.data)
    case 'immediate':
      return verdictExpressionOf(attributes.data)
    case 'numgen':
      return numgenOf(attributes.data)
    case 'nat':
      return dnatOf(attributes.data)
    case 'masq':
      return masqueradeOf(attributes.data)
    case 'reject':
      return rejectOf(attributes.data)
    case 'fib':
      return fibOf(attributes.data)
    case 'dynset':
      return dynsetOf(attributes.data)
    case 'match':
    case 'target':
      return extensionOf(attributes.tag, attributes.data)
    case 'counter':
      return { kind: 'counter' }
    case 'limit':
      return limitOf(attributes.data)
    case 'log':
      return logOf(attributes.data)
    case 'unknown':
      return undefined
    default:
      return unreachable(attributes)
  }
}

function extensionOf(
  kind: 'match' | 'target',
  { name, revision, info }: Values<'match' | 'target'>,
): Expression | undefined {
  if (name === undefined || revision === undefined || info === undefined) return undefined
  return { kind, name, revision, info }
}

/**
 * Returns the number of a register. The kernel reports a 32-bit register (NFT_REG32_00 + n) or, where it starts a
 * 128-bit one, that one (NFT_REG_1 + n / 4): nft_dump_register in net/netfilter/nf_tables_api.c.
 */
export function registerNumber(number: number | undefined): number | undefined {
  if (number === undefined) return undefined
  if (number >= nft.NFT_REG_1 && number <= nft.NFT_REG_4) return (number - nft.NFT_REG_1) * 4
  if (number >= nft.NFT_REG32_00 && number <= nft.NFT_REG32_15) return number - nft.NFT_REG32_00
  return undefined
}

function payloadOf(values: Values<'payload'>): Expression | undefined {
  const { base, offset, length, sreg } = values
  const dreg = registerNumber(values.dreg)
  if (dreg === undefined || base === undefined || offset === undefined || length === undefined)
    return undefined
  return sreg === undefined ? { kind: 'payload', base, offset, length, dreg } : undefined
}

function metaOf({ key, ...registers }: Values<'meta'>): Expression | undefined {
  const dreg = registerNumber(registers.dreg)
  const sreg = registerNumber(registers.sreg)
  if (key === undefined) return undefined
  if (dreg !== undefined && sreg === undefined) return { kind: 'meta', key, dreg }
  if (sreg !== undefined && dreg === undefined) return { kind: 'meta-set', key, sreg }
  return undefined
}

function ctOf(values: Values<'ct'>): Expression | undefined {
  const { key, direction, sreg } = values
  const dreg = registerNumber(values.dreg)
  if (key === undefined || dreg === undefined || direction !== undefined || sreg !== undefined)
    return undefined
  return { kind: 'ct', key, dreg }
}

function cmpOf(values: Values<'cmp'>): Expression | undefined {
  const sreg = registerNumber(values.sreg)
  const data = values.data?.value
  const op = (['eq', 'neq'] as const).find(its => CMP_OPS[its] === values.op)
  if (sreg === undefined || data === undefined || op === undefined) return undefined
  return { kind: 'cmp', op, sreg, data }
}

function bitwiseOf(values: Values<'bitwise'>): Expression | undefined {
  const sreg = registerNumber(values.sreg)
  const dreg = registerNumber(values.dreg)
  const mask = values.mask?.value
  const xor = values.xor?.value
  const other =
    values.data !== undefined || (values.op ?? nft.NFT_BITWISE_MASK_XOR) !== nft.NFT_BITWISE_MASK_XOR
  if (sreg === undefined || dreg === undefined || mask === undefined || xor === undefined || other)
    return undefined
  return { kind: 'bitwise', sreg, dreg, mask, xor }
}

function lookupOf(values: Values<'lookup'>): Expression | undefined {
  const { set, flags = 0 } = values
  const sreg = registerNumber(values.sreg)
  const dreg = values.dreg === nft.NFT_REG_VERDICT ? 'verdict' : registerNumber(values.dreg)
  if (set === undefined || sreg === undefined || (flags & ~nft.NFT_LOOKUP_F_INV) !== 0) return undefined
  return { kind: 'lookup', set, sreg, dreg, inverted: flags !== 0 }
}

function verdictExpressionOf({ dreg, data }: Values<'immediate'>): Expression | undefined {
  const verdict = data === undefined ? undefined : verdictOf(data)
  if (dreg !== nft.NFT_REG_VERDICT || verdict === undefined) return undefined
  return { kind: 'verdict', verdict }
}

export function verdictOf({ verdict }: ValuesOf<typeof DATA>): Verdict | undefined {
  return verdict?.code === undefined ? undefined : { code: verdict.code, chain: verdict.chain }
}

function numgenOf(values: Values<'numgen'>): Expression | undefined {
  const { modulus, type, offset = 0 } = values
  const dreg = registerNumber(values.dreg)
  if (dreg === undefined || modulus === undefined || type !== nft.NFT_NG_RANDOM) return undefined
  return offset === 0 ? { kind: 'numgen', modulus, dreg } : { kind: 'numgen', modulus, offset, dreg }
}

/** The kernel derives these two flags from the registers that are present. */
const IMPLIED_NAT_FLAGS = nft.NF_NAT_RANGE_MAP_IPS | nft.NF_NAT_RANGE_PROTO_SPECIFIED

function dnatOf(values: Values<'nat'>): Expression | undefined {
  const { type, addressMin, addressMax = addressMin, portMin, portMax = portMin, flags = 0 } = values
  const family = (['ip', 'ip6'] as const).find(its => NAT_FAMILIES[its] === values.family)
  const addressReg = registerNumber(addressMin)
  const portReg = registerNumber(portMin)
  const ranged = addressMax !== addressMin || portMax !== portMin || (flags & ~IMPLIED_NAT_FLAGS) !== 0
  if (type !== nft.NFT_NAT_DNAT || family === undefined || ranged) return undefined
  if (addressReg === undefined || (portReg === undefined && portMin !== undefined)) return undefined
  return { kind: 'dnat', family, addressReg, portReg }
}

function masqueradeOf({ flags = 0, portMin, portMax }: Values<'masq'>): Expression | undefined {
  return portMin === undefined && portMax === undefined ? { kind: 'masquerade', flags } : undefined
}

function rejectOf({ type, code }: Values<'reject'>): Expression | undefined {
  return type === nft.NFT_REJECT_ICMP_UNREACH && code !== undefined ? { kind: 'reject', code } : undefined
}

function fibOf({ result, flags, ...registers }: Values<'fib'>): Expression | undefined {
  const dreg = registerNumber(registers.dreg)
  if (dreg === undefined || flags === undefined || result !== nft.NFT_FIB_RESULT_ADDRTYPE) return undefined
  return { kind: 'fib', flags, dreg }
}

function dynsetOf(values: Values<'dynset'>): Expression | undefined {
  const { set, timeout = 0n, flags = 0, expression, expressions } = values
  const op = (['add', 'update', 'delete'] as const).find(its => DYNSET_OPS[its] === values.op)
  const keyReg = registerNumber(values.keyReg)
  if (set === undefined || op === undefined || keyReg === undefined) return undefined
  if (flags !== 0 || expression !== undefined || expressions !== undefined) return undefined
  const dataReg = registerNumber(values.dataReg)
  return { kind: 'dynset', op, set, keyReg, dataReg, timeoutMs: Number(timeout) }
}

function limitOf({ rate, unit, burst, type, flags = 0 }: Values<'limit'>): Expression | undefined {
  if (rate === undefined || burst === undefined || unit !== 1n) return undefined
  if (type !== nft.NFT_LIMIT_PKTS || flags !== 0 || rate > BigInt(Number.MAX_SAFE_INTEGER)) return undefined
  return { kind: 'limit', perSecond: Number(rate), burst }
}

function logOf(values: Values<'log'>): Expression | undefined {
  const { group, prefix, snaplen, threshold, level, flags } = values
  if (group === undefined || prefix === undefined || snaplen === undefined) return undefined
  if (threshold !== LOG_THRESHOLD || level !== undefined || flags !== undefined) return undefined
  return { kind: 'log', group, prefix, packetBytes: snaplen }
}
