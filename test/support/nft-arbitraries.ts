import * as fc from 'fast-check'
import type { Octets } from '../../src/base/octets.ts'
import { NFT_DATA_VERDICT } from '../../src/kernel/nft/constants.ts'
import { EXPRESSIONS } from '../../src/kernel/nft/schema.ts'
import type { Element, Expression, NftSet, Verdict } from '../../src/kernel/nft/state.ts'
import type { Operation } from '../../src/kernel/nft/transaction.ts'
import { columns } from './owned.ts'

/** Values of kernel/nft at random, as wide as the kernel's own types. */

const u32 = fc.nat({ max: 0xffff_ffff })
const s32 = fc.integer({ min: -0x8000_0000, max: 0x7fff_ffff })
const register = fc.integer({ min: 0, max: 15 })
export const name = fc.string({ minLength: 1, maxLength: 30, unit: 'grapheme-ascii' })

export function octets(minLength: number, maxLength: number): fc.Arbitrary<Octets> {
  return fc.uint8Array({ minLength, maxLength }).map(bytes => Buffer.from(bytes).toString('latin1'))
}

/** Mostly as the nftables plane writes them; some empty, some beyond ASCII, some long. */
export const comment = fc.oneof(
  fc.constant(''),
  fc.string({ maxLength: 40, unit: 'grapheme-ascii' }),
  fc.string({ maxLength: 20, unit: 'grapheme' }).filter(text => !text.includes('\0')),
  fc.string({ minLength: 245, maxLength: 253, unit: 'grapheme-ascii' }),
)

export const verdict: fc.Arbitrary<Verdict> = fc.record({
  code: s32,
  chain: fc.option(name, { nil: undefined }),
})

/** Numbered by their places. */
export const IPSETS: readonly string[] = ['KUBE-CLUSTER-IP', 'KUBE-6-CLUSTER-IP', 'x'.repeat(31)]

const maskAndXor = fc
  .integer({ min: 1, max: 16 })
  .chain(length => fc.tuple(octets(length, length), octets(length, length)))

const extension = {
  name: fc.constantFrom('comment', 'recent', 'DNAT'),
  revision: fc.nat({ max: 4 }),
  info: octets(0, 80),
}

/** Expressions of the kernel that have no table yet. */
const UNKNOWN = ['limit', 'log', 'quota'].filter(tag => !Object.hasOwn(EXPRESSIONS, tag))

type ArbitraryOf<Kind extends Expression['kind']> = fc.Arbitrary<Extract<Expression, { readonly kind: Kind }>>

/** Complete: the compiler finds a kind that is not here. */
const BY_KIND: { readonly [Kind in Expression['kind']]: ArbitraryOf<Kind> } = {
  payload: fc.record({
    kind: fc.constant('payload' as const),
    base: u32,
    offset: u32,
    length: u32,
    dreg: register,
  }),
  meta: fc.record({ kind: fc.constant('meta' as const), key: u32, dreg: register }),
  'meta-set': fc.record({ kind: fc.constant('meta-set' as const), key: u32, sreg: register }),
  ct: fc.record({ kind: fc.constant('ct' as const), key: u32, dreg: register }),
  cmp: fc.record({
    kind: fc.constant('cmp' as const),
    op: fc.constantFrom('eq' as const, 'neq' as const),
    sreg: register,
    data: octets(1, 16),
  }),
  bitwise: fc.tuple(maskAndXor, register, register).map(([[mask, xor], sreg, dreg]) => {
    return { kind: 'bitwise' as const, sreg, dreg, mask, xor }
  }),
  lookup: fc.record({
    kind: fc.constant('lookup' as const),
    set: name,
    sreg: register,
    dreg: fc.oneof(register, fc.constantFrom('verdict' as const, undefined)),
    inverted: fc.boolean(),
  }),
  verdict: fc.record({ kind: fc.constant('verdict' as const), verdict }),
  jhash: fc.record({
    kind: fc.constant('jhash' as const),
    sreg: register,
    length: u32,
    modulus: u32,
    seed: u32,
    dreg: register,
  }),
  numgen: fc.record({ kind: fc.constant('numgen' as const), modulus: u32, dreg: register }),
  dnat: fc.record({
    kind: fc.constant('dnat' as const),
    family: fc.constantFrom('ip' as const, 'ip6' as const),
    addressReg: register,
    portReg: fc.option(register, { nil: undefined }),
  }),
  masquerade: fc.record({ kind: fc.constant('masquerade' as const), flags: u32 }),
  reject: fc.record({ kind: fc.constant('reject' as const), code: fc.nat({ max: 255 }) }),
  fib: fc.record({ kind: fc.constant('fib' as const), flags: u32, dreg: register }),
  dynset: fc.record({
    kind: fc.constant('dynset' as const),
    op: fc.constantFrom('add' as const, 'update' as const, 'delete' as const),
    set: name,
    keyReg: register,
    dataReg: fc.option(register, { nil: undefined }),
    timeoutMs: u32,
  }),
  counter: fc.constant({ kind: 'counter' as const }),
  limit: fc.record({
    kind: fc.constant('limit' as const),
    perSecond: fc.integer({ min: 1, max: 0xffff }),
    burst: u32,
  }),
  log: fc.record({
    kind: fc.constant('log' as const),
    group: fc.nat({ max: 0xffff }),
    prefix: name,
    packetBytes: u32,
  }),
  ipset: fc.record({
    kind: fc.constant('ipset' as const),
    set: fc.constantFrom(...IPSETS),
    dimensions: fc.array(fc.constantFrom('src' as const, 'dst' as const), { minLength: 1, maxLength: 6 }),
    inverted: fc.boolean(),
  }),
  match: fc.record({ kind: fc.constant('match' as const), ...extension }),
  target: fc.record({ kind: fc.constant('target' as const), ...extension }),
  unknown: fc.record({
    kind: fc.constant('unknown' as const),
    name: fc.constantFrom(...UNKNOWN),
    data: octets(0, 40),
  }),
}

export const expression: fc.Arbitrary<Expression> = fc.oneof(...Object.values(BY_KIND))

export const element: fc.Arbitrary<Element> = fc.record({
  set: fc.constant('things'),
  key: octets(0, 64),
  data: fc.oneof(fc.constant(undefined), octets(0, 64), verdict),
  comment,
})

export const set: fc.Arbitrary<NftSet> = fc
  .record({
    name,
    flags: u32,
    keyType: u32,
    keyLength: u32,
    data: fc.option(fc.record({ type: u32, length: u32 }), { nil: undefined }),
    verdicts: fc.boolean(),
    size: u32,
    timeoutMs: u32,
    userdata: octets(0, 40),
  })
  .map(({ data, verdicts, ...rest }) => ({
    ...rest,
    dataType: verdicts ? NFT_DATA_VERDICT : data?.type === NFT_DATA_VERDICT ? 0 : data?.type,
    dataLength: verdicts ? undefined : data?.length,
  }))

const place = { family: fc.constantFrom('ip' as const, 'ip6' as const), table: name }
const owned = fc.array(fc.record({ element, group: name }), { maxLength: 30 }).map(columns)

function onElements(verb: 'add-elements' | 'delete-elements'): fc.Arbitrary<Operation> {
  return fc.record({ ...place, set, owned }).map(({ owned, ...rest }) => ({ ...rest, verb, ...owned }))
}

export const operation: fc.Arbitrary<Operation> = fc.oneof(
  fc.record({
    ...place,
    verb: fc.constant('add-table' as const),
    flags: u32,
    comment: fc.constantFrom(undefined, 'a table'),
  }),
  fc.record({ ...place, verb: fc.constant('delete-table' as const) }),
  fc.record({
    ...place,
    verb: fc.constant('add-rule' as const),
    chain: name,
    rule: fc.record({ expressions: fc.array(expression, { maxLength: 12 }), comment }),
  }),
  fc.record({ ...place, verb: fc.constant('add-set' as const), set }),
  fc.record({ ...place, verb: fc.constant('delete-set' as const), set: name }),
  fc.record({ ...place, verb: fc.constant('flush-chain' as const), chain: name }),
  fc.record({
    ...place,
    verb: fc.constant('delete-rule' as const),
    chain: name,
    handle: fc.bigInt({ min: 1n, max: 0xffff_ffff_ffffn }),
  }),
  onElements('add-elements'),
  onElements('delete-elements'),
)
