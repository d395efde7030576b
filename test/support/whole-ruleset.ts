import { PersistentMap } from '../../src/base/collections.ts'
import { diffRulesets } from '../../src/kernel/nft/diff.ts'
import type { Chain, Element, NftSet, Rule, Ruleset, Table } from '../../src/kernel/nft/state.ts'
import type { Transaction } from '../../src/kernel/nft/transaction.ts'

const MARK_BYTE_ORDER = '\x00\x04\x01\0\0\0'

export function declare(name: string, over: Partial<NftSet>): NftSet {
  const plain = { flags: 0, keyType: 19, keyLength: 4, dataType: undefined, dataLength: undefined }
  return { name, size: 64, timeoutMs: 0, userdata: MARK_BYTE_ORDER, ...plain, ...over }
}

export const SETS = [
  declare('members', {}),
  declare('values', { flags: 8, dataType: 19, dataLength: 4 }),
  declare('dispatch', { flags: 8, dataType: 0xffffff00 }),
  declare('clients', { flags: 8 | 16 | 32, dataType: 19, dataLength: 4, timeoutMs: 60_000 }),
]

/** Every expression that the layout writes: see docs/how-to/add-a-netlink-attribute.md. */
function everyRule(family: 'ip' | 'ip6'): readonly Rule[] {
  const length = family === 'ip' ? 4 : 16
  const offset = family === 'ip' ? 16 : 24
  const address = { kind: 'payload', base: 1, offset, length, dreg: 4 } as const
  const port = { kind: 'payload', base: 2, offset: 2, length: 2, dreg: 4 + length / 4 } as const
  return [
    {
      expressions: [
        { kind: 'meta', key: 3, dreg: 0 },
        { kind: 'lookup', set: 'members', sreg: 0, dreg: undefined, inverted: true },
      ],
      comment: 'not a member',
    },
    {
      expressions: [
        { kind: 'meta', key: 3, dreg: 0 },
        { kind: 'bitwise', sreg: 0, dreg: 0, mask: '\xff\x0f\0\0', xor: '\0\x10\0\0' },
        { kind: 'lookup', set: 'values', sreg: 0, dreg: 4, inverted: false },
        // Through the mark and back: nft cannot list what uses the result of a map at once.
        { kind: 'meta-set', key: 3, sreg: 4 },
        { kind: 'meta', key: 3, dreg: 6 },
        { kind: 'meta', key: 3, dreg: 7 },
        { kind: 'dynset', op: 'update', set: 'clients', keyReg: 6, dataReg: 7, timeoutMs: 30_000 },
        { kind: 'lookup', set: 'dispatch', sreg: 7, dreg: 'verdict', inverted: false },
      ],
      comment: '',
    },
    {
      expressions: [
        { kind: 'ct', key: 2, dreg: 1 },
        { kind: 'cmp', op: 'neq', sreg: 1, data: '\0\0\0\0' },
        { kind: 'counter' },
      ],
      comment: '',
    },
    {
      expressions: [
        { kind: 'fib', flags: 2, dreg: 9 },
        { kind: 'cmp', op: 'eq', sreg: 9, data: '\x02\0\0\0' },
        address,
        port,
        { kind: 'lookup', set: 'ports', sreg: 4, dreg: undefined, inverted: false },
        { kind: 'meta', key: 3, dreg: 8 },
        { kind: 'numgen', modulus: 3, dreg: 9 },
        { kind: 'lookup', set: 'endpoints', sreg: 8, dreg: 10, inverted: false },
        { kind: 'dnat', family, addressReg: 10, portReg: 10 + length / 4 },
      ],
      comment: '',
    },
    { expressions: [{ kind: 'verdict', verdict: { code: -4, chain: 'end' } }], comment: 'Dienst ä' },
  ]
}

function addressSets(family: 'ip' | 'ip6'): readonly NftSet[] {
  const [type, length] = family === 'ip' ? [7, 4] : [8, 16]
  const pair = { dataType: (type << 6) | 13, dataLength: length + 4, userdata: '' }
  return [
    declare('ports', { keyType: (type << 6) | 13, keyLength: length + 4, userdata: '' }),
    declare('endpoints', { flags: 8, keyType: (19 << 6) | 19, keyLength: 8, ...pair }),
  ]
}

export function tableOf(family: 'ip' | 'ip6', elements: readonly Element[]): Table {
  const chains: Chain[] = [
    { name: 'start', hook: { type: 'nat', hooknum: 0, priority: -100 }, rules: everyRule(family) },
    {
      name: 'last',
      hook: { type: 'nat', hooknum: 4, priority: 100 },
      rules: [{ expressions: [{ kind: 'masquerade', flags: 16 }], comment: '' }],
    },
    {
      name: 'end',
      hook: undefined,
      rules: [{ expressions: [{ kind: 'reject', code: family === 'ip' ? 3 : 4 }], comment: '' }],
    },
  ]
  return {
    family,
    name: 'kube-proxy',
    flags: 0,
    comment: 'of a test',
    chains: new Map(chains.map(chain => [chain.name, chain] as const)),
    sets: new Map([...SETS, ...addressSets(family)].map(set => [set.name, set] as const)),
    elements: PersistentMap.from([['ns1/web', elements]]),
  }
}

export const ELEMENTS: readonly Element[] = [
  { set: 'members', key: 'aaaa', data: undefined, comment: 'ns1/web' },
  { set: 'values', key: 'aaaa', data: 'bbbb', comment: '' },
  { set: 'values', key: 'cccc', data: 'dddd', comment: 'ns1/ä' },
  { set: 'dispatch', key: 'aaaa', data: { code: -4, chain: 'end' }, comment: '' },
  { set: 'dispatch', key: 'bbbb', data: { code: 0, chain: undefined }, comment: '' },
]

export const NOTHING: Ruleset = { tables: [] }
/** Every kind of object, expression and element that the layout writes, in both families. */
export const WHOLE: Ruleset = { tables: [tableOf('ip', ELEMENTS), tableOf('ip6', ELEMENTS)] }

export function plan(from: Ruleset, to: Ruleset): Transaction {
  return diffRulesets(from, to, { lateSets: new Set() }).transaction
}
