import fc from 'fast-check'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { PersistentMap } from '../../src/base/persistent-map.ts'
import { finish } from '../../src/base/steps.ts'
import { createNftClient, type NftClient } from '../../src/kernel/nft/client.ts'
import { diffRulesets } from '../../src/kernel/nft/diff.ts'
import type { Rule } from '../../src/kernel/nft/expression.ts'
import type { Transaction } from '../../src/kernel/nft/operation.ts'
import type { Chain, Element, NftSet, Ruleset, Table } from '../../src/kernel/nft/state.ts'
import { arbitraryRuleset } from '../support/fake-kernel/random-rulesets.ts'
import { canonicalText } from '../support/fake-kernel/ruleset-model.ts'
import type { Target, TargetFactory } from './target.ts'
import { walk } from './walk.ts'

/** The client over a kernel: what it writes it reads back, and what the kernel says arrives in the result. */
export function clientSuite(factory: TargetFactory): void {
  let target: Target
  let client: NftClient
  beforeEach(() => {
    target = factory()
    client = clientOf(target)
  })
  afterEach(() => client.close())

  roundTrips(
    () => target,
    () => client,
  )
  results(() => ({ target, client }))
}

function clientOf(target: Target): NftClient {
  return createNftClient({ transport: target.open(), clock: systemClock })
}

const HERE = { family: 'ip', table: 'kube-proxy' } as const
const ALL = [
  { family: 'ip', name: 'kube-proxy' },
  { family: 'ip6', name: 'kube-proxy' },
] as const
const MARK_BYTE_ORDER = '\x00\x04\x01\0\0\0'

function declare(name: string, over: Partial<NftSet>): NftSet {
  const plain = { flags: 0, keyType: 19, keyLength: 4, dataType: undefined, dataLength: undefined }
  return { name, size: 64, timeoutMs: 0, userdata: MARK_BYTE_ORDER, ...plain, ...over }
}

const SETS = [
  declare('members', {}),
  declare('values', { flags: 8, dataType: 19, dataLength: 4 }),
  declare('dispatch', { flags: 8, dataType: 0xffffff00 }),
  declare('clients', { flags: 8 | 16 | 32, dataType: 19, dataLength: 4, timeoutMs: 60_000 }),
]

/** Every expression that the layout writes. */
function everyRule(family: 'ip' | 'ip6'): readonly Rule[] {
  const length = family === 'ip' ? 4 : 16
  const address = { kind: 'payload', base: 1, offset: family === 'ip' ? 16 : 24, length, dreg: 0 } as const
  const port = { kind: 'payload', base: 2, offset: 2, length: 2, dreg: 5 } as const
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
        { kind: 'meta-set', key: 3, sreg: 4 },
        { kind: 'dynset', op: 'update', set: 'clients', keyReg: 0, dataReg: 4, timeoutMs: 30_000 },
        { kind: 'lookup', set: 'dispatch', sreg: 4, dreg: 'verdict', inverted: false },
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
        { kind: 'numgen', modulus: 3, dreg: 8 },
        address,
        port,
        { kind: 'dnat', family, addressReg: 0, portReg: 5 },
      ],
      comment: '',
    },
    { expressions: [{ kind: 'verdict', verdict: { code: -4, chain: 'end' } }], comment: 'Dienst "ä"' },
  ]
}

function tableOf(family: 'ip' | 'ip6', elements: readonly Element[]): Table {
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
    sets: new Map(SETS.map(set => [set.name, set] as const)),
    elements: PersistentMap.from([['ns1/web', elements]]),
  }
}

const ELEMENTS: readonly Element[] = [
  { set: 'members', key: 'aaaa', data: undefined, comment: 'ns1/web' },
  { set: 'values', key: 'aaaa', data: 'bbbb', comment: '' },
  { set: 'values', key: 'cccc', data: 'dddd', comment: 'ns1/ä' },
  { set: 'dispatch', key: 'aaaa', data: { code: -4, chain: 'end' }, comment: '' },
  { set: 'dispatch', key: 'bbbb', data: { code: 0, chain: undefined }, comment: '' },
]

function plan(from: Ruleset, to: Ruleset): Transaction {
  return finish(diffRulesets(from, to, { lateSets: new Set() })).transaction
}

const NOTHING: Ruleset = { tables: [] }
const WHOLE: Ruleset = { tables: [tableOf('ip', ELEMENTS), tableOf('ip6', ELEMENTS)] }

function roundTrips(target: () => Target, client: () => NftClient): void {
  test('what is written is read back, equal in every part, so that the next difference is empty', async () => {
    const result = await client().commit(plan(NOTHING, WHOLE))
    expect(result).toMatchObject({ outcome: 'committed', failures: [] })
    const { ruleset, generation } = await client().list(ALL)
    expect(canonicalText(ruleset)).toBe(canonicalText(WHOLE))
    expect(generation).toBe(result.generation)
    expect(plan(ruleset, WHOLE)).toEqual([])
  })

  test('differences alone lead through random states', async () => {
    const states = fc.array(arbitraryRuleset, { minLength: 2, maxLength: 6 })
    const transport = target().open()
    await fc.assert(
      fc.asyncProperty(states, goals => walk(transport, goals)),
      { numRuns: 25 },
    )
  })

  test('tables that do not exist are left out', async () => {
    expect((await client().list(ALL)).ruleset.tables).toEqual([])
  })

  test('thousands of elements arrive in one commit, from the pool, and are read back', async () => {
    const many = Array.from({ length: 7000 }, (_, i): Element => {
      return {
        set: 'values',
        key: String.fromCharCode(i & 255, i >> 8, 1, 0),
        data: 'xxxx',
        comment: `ns1/svc-${i}`,
      }
    })
    const sets = new Map(
      [...(WHOLE.tables[0]?.sets ?? [])].map(([name, set]) => [name, { ...set, size: 16_384 }] as const),
    )
    const to: Ruleset = { tables: [{ ...tableOf('ip', many), sets }] }
    expect(await client().commit(plan(NOTHING, to))).toMatchObject({ outcome: 'committed' })
    expect(plan((await client().list(ALL)).ruleset, to)).toEqual([])
    expect(await client().commit(plan(to, NOTHING))).toMatchObject({ outcome: 'committed' })
  })

  test('replacing a table keeps what packets made, with the time it has left', async () => {
    const remembered: Element = { set: 'clients', key: 'cccc', data: 'bbbb', comment: '', expiresMs: 50_000 }
    const from: Ruleset = { tables: [tableOf('ip', [...ELEMENTS, remembered])] }
    const sets = new Map(
      SETS.map(set => [set.name, set.name === 'values' ? { ...set, size: 128 } : set] as const),
    )
    const to: Ruleset = { tables: [{ ...tableOf('ip', ELEMENTS), sets }] }
    expect(await client().commit(plan(NOTHING, { tables: [tableOf('ip', ELEMENTS)] }))).toMatchObject({
      outcome: 'committed',
    })
    expect(await client().commit(plan(from, to))).toMatchObject({ outcome: 'committed' })
    const kept = (await client().list(ALL)).ruleset.tables[0]?.elements.get('clients') ?? []
    expect(kept).toMatchObject([{ key: 'cccc', data: 'bbbb' }])
    expect(kept[0]?.expiresMs).toBeGreaterThan(40_000)
    expect(kept[0]?.expiresMs).toBeLessThanOrEqual(50_100)
  })
}

function results(at: () => { readonly target: Target; readonly client: NftClient }): void {
  test('a refused element is named with its group and the errno, and nothing is committed', async () => {
    const { client } = at()
    await client.commit(plan(NOTHING, WHOLE))
    const generation = client.generation()
    const values = SETS[1] ?? declare('values', {})
    const elements = [
      { element: { set: 'values', key: 'zzzz', data: 'bbbb', comment: '' }, group: 'ns1/good' },
      { element: { set: 'values', key: 'aaaa', data: 'zzzz', comment: '' }, group: 'ns1/bad' },
    ]
    const result = await client.commit([{ ...HERE, verb: 'add-elements', set: values, elements }])
    expect(result).toMatchObject({ outcome: 'refused', generation })
    expect(result.failures).toHaveLength(1)
    expect(result.failures[0]?.elements).toEqual([elements[1]])
    expect(result.failures[0]?.error.message).toMatch(/ns1\/bad.*EEXIST/)
  })

  test('a commit against an older generation is stale and changes nothing', async () => {
    const { target, client } = at()
    const { generation } = await client.list(ALL)
    const other = clientOf(target)
    await other.commit(plan(NOTHING, { tables: [tableOf('ip', [])] }))
    expect(await client.commit(plan(NOTHING, WHOLE), { generation })).toMatchObject({ outcome: 'stale' })
    expect((await client.list(ALL)).ruleset.tables).toHaveLength(1)
    await other.close()
  })

  test('a commit tells when somebody else committed since the last look', async () => {
    const { target, client } = at()
    client.generation()
    const own = await client.commit([{ ...HERE, verb: 'add-table', flags: 0, comment: undefined }])
    expect(own.foreign).toBe(false)
    const other = clientOf(target)
    await other.commit([{ ...HERE, family: 'ip6', verb: 'add-table', flags: 0, comment: undefined }])
    expect(await client.commit([{ ...HERE, verb: 'delete-table' }])).toMatchObject({
      outcome: 'committed',
      foreign: true,
    })
    await other.close()
  })

  test('what is missing is named: a table that somebody flushed, a chain', async () => {
    const { client } = at()
    const result = await client.commit([{ ...HERE, verb: 'flush-chain', chain: 'services' }])
    expect(result.outcome).toBe('refused')
    expect(result.failures[0]?.error.message).toMatch(/flush chain ip kube-proxy services.*ENOENT/)
  })
}
