import { append } from '../../base/collections.ts'
import type { Octets } from '../../base/octets.ts'
import { fieldOf } from '../../base/plain-data.ts'
import type { ValuesOf } from '../../netlink/schema.ts'
import * as nft from './constants.ts'
import { type IndexOfIpset, ipsetMatchOf, matchAttributesOf, type NameOfIpset } from './ipset-match.ts'
import { type DATA, EXPRESSION, EXPRESSIONS, type ExpressionAttributes } from './schema.ts'
import type { Expression, Verdict } from './state.ts'

/** How an attribute is made from a field of a value. */
interface Column {
  /** The field, where it has not the name of the attribute. */
  readonly field?: string
  readonly write: (value: unknown) => unknown
  /** Undefined for an attribute that no value is written as. Absent for one that says the same as another one. */
  readonly read?: (attribute: unknown) => unknown
  /** The value may lack the field. */
  readonly isOptional?: true
}

interface Row {
  readonly tag: keyof typeof EXPRESSIONS
  readonly columns: Readonly<Record<string, Column>>
  /** Attributes that all expressions of this kind have. */
  readonly always?: Readonly<Record<string, unknown>>
}

const SAME: Column = { write: value => value, read: value => value }
const REGISTER: Column = {
  write: number => (typeof number === 'number' ? register(number) : undefined),
  read: number => (typeof number === 'number' ? registerNumber(number) : undefined),
}
const MAP_TARGET: Column = {
  isOptional: true,
  write: number => (number === 'verdict' ? nft.NFT_REG_VERDICT : REGISTER.write(number)),
  read: number => (number === nft.NFT_REG_VERDICT ? 'verdict' : REGISTER.read?.(number)),
}
const VALUE: Column = { write: value => ({ value }), read: data => fieldOf(data, 'value') }

const OFFSET: Column = {
  isOptional: true,
  write: (offset = 0) => offset,
  read: offset => (offset === 0 ? undefined : offset),
}

function oneOf(numbers: Readonly<Record<string, number>>): Column {
  return {
    write: name => numbers[String(name)],
    read: number => Object.keys(numbers).find(name => numbers[name] === number),
  }
}

/** Undefined for what is no number of 64 bits, or not exactly a number of JavaScript. */
function safeNumber(value: unknown): number | undefined {
  return typeof value === 'bigint' && value <= Number.MAX_SAFE_INTEGER ? Number(value) : undefined
}

function verdictIn(data: unknown): unknown {
  const verdict = fieldOf(data, 'verdict')
  return fieldOf(verdict, 'code') === undefined ? undefined : verdict
}

const CMP_OPS = { eq: nft.NFT_CMP_EQ, neq: nft.NFT_CMP_NEQ } as const
const DYNSET_OPS = {
  add: nft.NFT_DYNSET_OP_ADD,
  update: nft.NFT_DYNSET_OP_UPDATE,
  delete: nft.NFT_DYNSET_OP_DELETE,
} as const
const NAT_FAMILIES = { ip: nft.NFPROTO_IPV4, ip6: nft.NFPROTO_IPV6 } as const
const EXTENSION = { name: SAME, revision: SAME, info: SAME } as const

type Kind = Exclude<Expression['kind'], 'ipset' | 'unknown'>

/** What kprobe writes for each kind of expression. */
const ROWS: Readonly<Record<Kind, Row>> = {
  payload: { tag: 'payload', columns: { dreg: REGISTER, base: SAME, offset: SAME, length: SAME } },
  meta: { tag: 'meta', columns: { key: SAME, dreg: REGISTER } },
  'meta-set': { tag: 'meta', columns: { key: SAME, sreg: REGISTER } },
  ct: { tag: 'ct', columns: { key: SAME, dreg: REGISTER } },
  cmp: { tag: 'cmp', columns: { sreg: REGISTER, op: oneOf(CMP_OPS), data: VALUE } },
  bitwise: {
    tag: 'bitwise',
    columns: {
      sreg: REGISTER,
      dreg: REGISTER,
      length: { field: 'mask', write: mask => String(mask).length },
      mask: VALUE,
      xor: VALUE,
    },
  },
  lookup: {
    tag: 'lookup',
    columns: {
      set: SAME,
      sreg: REGISTER,
      dreg: MAP_TARGET,
      flags: {
        field: 'inverted',
        write: isInverted => (isInverted === true ? nft.NFT_LOOKUP_F_INV : undefined),
        read: (flags = 0) => (flags === 0 || flags === nft.NFT_LOOKUP_F_INV ? flags !== 0 : undefined),
      },
    },
  },
  verdict: {
    tag: 'immediate',
    columns: {
      data: { field: 'verdict', write: verdict => ({ verdict }), read: verdictIn },
    },
    always: { dreg: nft.NFT_REG_VERDICT },
  },
  numgen: {
    tag: 'numgen',
    columns: { dreg: REGISTER, modulus: SAME, offset: OFFSET },
    always: { type: nft.NFT_NG_RANDOM },
  },
  jhash: {
    tag: 'hash',
    columns: {
      sreg: REGISTER,
      dreg: REGISTER,
      length: SAME,
      modulus: SAME,
      seed: SAME,
      offset: OFFSET,
    },
    always: { type: nft.NFT_HASH_JENKINS },
  },
  dnat: {
    tag: 'nat',
    columns: {
      family: oneOf(NAT_FAMILIES),
      addressMin: { ...REGISTER, field: 'addressReg' },
      portMin: { ...REGISTER, field: 'portReg', isOptional: true },
    },
    always: { type: nft.NFT_NAT_DNAT },
  },
  masquerade: {
    tag: 'masq',
    columns: { flags: { write: flags => (flags === 0 ? undefined : flags), read: (flags = 0) => flags } },
  },
  reject: { tag: 'reject', columns: { code: SAME }, always: { type: nft.NFT_REJECT_ICMP_UNREACH } },
  fib: {
    tag: 'fib',
    columns: { dreg: REGISTER, flags: SAME },
    always: { result: nft.NFT_FIB_RESULT_ADDRTYPE },
  },
  dynset: {
    tag: 'dynset',
    columns: {
      set: SAME,
      op: oneOf(DYNSET_OPS),
      keyReg: REGISTER,
      dataReg: { ...REGISTER, isOptional: true },
      timeout: {
        field: 'timeoutMs',
        write: ms => (ms === 0 ? undefined : BigInt(Number(ms))),
        read: (timeout = 0n) => safeNumber(timeout),
      },
    },
  },
  match: { tag: 'match', columns: EXTENSION },
  target: { tag: 'target', columns: EXTENSION },
  counter: { tag: 'counter', columns: {} },
  limit: {
    tag: 'limit',
    columns: {
      rate: { field: 'perSecond', write: rate => BigInt(Number(rate)), read: safeNumber },
      burst: SAME,
    },
    always: { unit: 1n, type: nft.NFT_LIMIT_PKTS, flags: 0 },
  },
  log: {
    tag: 'log',
    columns: { group: SAME, prefix: SAME, snaplen: { ...SAME, field: 'packetBytes' } },
    // Each logged packet is sent at once.
    always: { threshold: 1 },
  },
}

/** Returns the attributes that create `expression` in the kernel. Throws NetlinkError for an ipset without a number. */
export function attributesOf(expression: Expression, indexOf?: IndexOfIpset): ExpressionAttributes {
  if (expression.kind === 'ipset') return { tag: 'match', data: matchAttributesOf(expression, indexOf) }
  if (expression.kind === 'unknown') return { tag: 'unknown', name: expression.name, octets: expression.data }
  const { tag, columns, always } = ROWS[expression.kind]
  const data: Record<string, unknown> = { ...always }
  for (const [name, { field = name, write }] of Object.entries(columns))
    data[name] = write(fieldOf(expression, field))
  const made = { tag, data }
  return isOfRows<ExpressionAttributes>(made) ? made : { tag: 'unknown', name: tag, octets: '' }
}

/** The rows guarantee the types of what is made by them. */
function isOfRows<T extends object>(made: object): made is T {
  return 'tag' in made || 'kind' in made
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

/** A row, as it is read. */
interface Reader {
  readonly kind: string
  readonly columns: readonly (readonly [string, Column])[]
  /** The other attributes of the expression, with what they have to be. */
  readonly others: readonly (readonly [string, unknown])[]
}

/** What the kernel lists for an attribute that kprobe leaves out. */
const DEFAULTS: Readonly<Record<string, unknown>> = { flags: 0, op: 0, offset: 0, timeout: 0n }

/** By tag, and unfolded once: a dump may contain millions of expressions. */
const READERS = readersByTag()

function readersByTag(): ReadonlyMap<string, readonly Reader[]> {
  const readers = new Map<string, Reader[]>()
  for (const [kind, { tag, columns, always = {} }] of Object.entries(ROWS)) {
    const others = Object.keys(EXPRESSIONS[tag].fields).filter(name => !Object.hasOwn(columns, name))
    append(readers, tag, {
      kind,
      columns: Object.entries(columns).filter(([, { read }]) => read !== undefined),
      others: others.map((name): [string, unknown] => [name, always[name] ?? DEFAULTS[name]]),
    })
  }
  return readers
}

/**
 * Decodes an expression of a dump. It is `unknown` where no value stands for it: where kprobe would write other
 * attributes for the value.
 */
export function expressionOf(attributes: ExpressionAttributes, nameOf?: NameOfIpset): Expression {
  // The kernel lists its counts.
  if (attributes.tag === 'counter') return { kind: 'counter' }
  const ipset = attributes.tag === 'match' ? ipsetMatchOf(attributes.data, nameOf) : undefined
  if (ipset !== undefined) return ipset
  const data = attributes.tag === 'nat' ? withoutImplied(attributes.data) : fieldOf(attributes, 'data')
  for (const reader of READERS.get(attributes.tag) ?? []) {
    const value = valueBy(reader, data)
    if (value !== undefined) return value
  }
  const { name, octets } = EXPRESSION.asOctets(attributes)
  return { kind: 'unknown', name, data: octets }
}

/** Undefined where the attributes say less or more than a value of this kind. */
function valueBy({ kind, columns, others }: Reader, data: unknown): Expression | undefined {
  for (const [name, expected] of others)
    if ((fieldOf(data, name) ?? DEFAULTS[name]) !== expected) return undefined
  const value: Record<string, unknown> = { kind }
  for (const [name, { field = name, read, isOptional }] of columns) {
    const attribute = fieldOf(data, name)
    const its = read?.(attribute)
    if (its === undefined && (isOptional !== true || (attribute ?? DEFAULTS[name]) !== DEFAULTS[name]))
      return undefined
    value[field] = its
  }
  return isOfRows<Expression>(value) ? value : undefined
}

/** The kernel derives these two flags from the registers that are present. */
const IMPLIED_NAT_FLAGS = nft.NF_NAT_RANGE_MAP_IPS | nft.NF_NAT_RANGE_PROTO_SPECIFIED

/** The kernel adds the maximum of a range that is one register. */
function withoutImplied(data: ValuesOf<(typeof EXPRESSIONS)['nat']>): typeof data {
  const { addressMin, addressMax, portMin, portMax, flags = 0 } = data
  return {
    ...data,
    flags: flags & ~IMPLIED_NAT_FLAGS,
    addressMax: addressMax === addressMin ? undefined : addressMax,
    portMax: portMax === portMin ? undefined : portMax,
  }
}

export function verdictOf({ verdict }: ValuesOf<typeof DATA>): Verdict | undefined {
  return verdict?.code === undefined ? undefined : { code: verdict.code, chain: verdict.chain }
}
