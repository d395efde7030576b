import fc from 'fast-check'
import { expect, type TestAPI, test } from 'vitest'
import type { NftClient } from '../../src/kernel/nft/client.ts'
import { diffRulesets } from '../../src/kernel/nft/diff.ts'
import type { Element, Ruleset } from '../../src/kernel/nft/state.ts'
import '../support/properties.ts'
import { arbitraryRuleset, LATE_SETS } from '../support/fake-kernel/random-rulesets.ts'
import { canonicalText } from '../support/fake-kernel/ruleset-model.ts'
import { columns } from '../support/owned.ts'
import { runs } from '../support/runs.ts'
import { declare, ELEMENTS, NOTHING, plan, SETS, tableOf, WHOLE } from '../support/whole-ruleset.ts'
import { clientOf, lent, type TargetFactory, type Tools } from './target.ts'

/** The client over a kernel: what it writes it reads back, and what the kernel says arrives in the result. */
export function clientSuite(factory: TargetFactory): void {
  const tools = test.extend<Tools>({
    target: ({ task: _ }, use) => use(factory()),
    client: ({ target }, use) => lent(clientOf(target), use),
  })
  roundTrips(tools)
  amounts(tools)
  results(tools)
  failures(tools)
}

const HERE = { family: 'ip', table: 'kube-proxy' } as const
const ALL = [
  { family: 'ip', name: 'kube-proxy' },
  { family: 'ip6', name: 'kube-proxy' },
] as const

/** A chain in use is emptied, then deleted; one that an element leads to waits for that first. */
const ROUNDS_MAX = 4

/** To each goal from what was read back, as healing does, until nothing is left to do. */
async function walk(client: NftClient, goals: readonly Ruleset[]): Promise<void> {
  for (const goal of goals) {
    for (let round = 0; round < ROUNDS_MAX; round++) {
      const { ruleset, generation } = await client.list(ALL)
      const transaction = difference(ruleset, goal)
      if (transaction.length === 0) break
      const result = await client.commit(transaction, { generation })
      expect(result.failures.map(failure => failure.error.message)).toEqual([])
      expect(result.outcome).toBe('committed')
    }
    expect(canonicalText((await client.list(ALL)).ruleset)).toBe(canonicalText(goal))
  }
}

function difference(from: Ruleset, to: Ruleset) {
  return diffRulesets(from, to, { lateSets: LATE_SETS }).transaction
}

function roundTrips(test: TestAPI<Tools>): void {
  test('what is written is read back, equal in every part, so that the next difference is empty', async ({
    client,
  }) => {
    const result = await client.commit(plan(NOTHING, WHOLE))
    expect(result).toMatchObject({ outcome: 'committed', failures: [] })
    const { ruleset, generation } = await client.list(ALL)
    expect(canonicalText(ruleset)).toBe(canonicalText(WHOLE))
    expect(generation).toBe(result.generation)
    expect(plan(ruleset, WHOLE)).toEqual([])
  })

  test('differences alone lead through random states', async ({ client }) => {
    const states = fc.array(arbitraryRuleset, { minLength: 2, maxLength: 6 })
    await fc.assert(
      fc.asyncProperty(states, goals => walk(client, goals)),
      { numRuns: runs(25) },
    )
  })

  test('tables that do not exist are left out', async ({ client }) => {
    expect((await client.list(ALL)).ruleset.tables).toEqual([])
  })
}

function amounts(test: TestAPI<Tools>): void {
  test('thousands of elements arrive in one commit, from the pool, and are read back', async ({ client }) => {
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
    expect(await client.commit(plan(NOTHING, to))).toMatchObject({ outcome: 'committed' })
    expect(plan((await client.list(ALL)).ruleset, to)).toEqual([])
    expect(await client.commit(plan(to, NOTHING))).toMatchObject({ outcome: 'committed' })
  })

  test('replacing a table keeps what packets made, with the time it has left', async ({ client }) => {
    const remembered: Element = { set: 'clients', key: 'cccc', data: 'bbbb', comment: '', expiresMs: 50_000 }
    const from: Ruleset = { tables: [tableOf('ip', [...ELEMENTS, remembered])] }
    const table = tableOf('ip', ELEMENTS)
    const sets = new Map(table.sets).set(
      'values',
      declare('values', { ...table.sets.get('values'), size: 128 }),
    )
    const to: Ruleset = { tables: [{ ...table, sets }] }
    expect(await client.commit(plan(NOTHING, { tables: [table] }))).toMatchObject({
      outcome: 'committed',
    })
    expect(await client.commit(plan(from, to))).toMatchObject({ outcome: 'committed' })
    const kept = (await client.list(ALL)).ruleset.tables[0]?.elements.get('clients') ?? []
    expect(kept).toMatchObject([{ key: 'cccc', data: 'bbbb' }])
    expect(kept[0]?.expiresMs).toBeGreaterThan(40_000)
    expect(kept[0]?.expiresMs).toBeLessThanOrEqual(50_100)
  })
}

function results(test: TestAPI<Tools>): void {
  test('a refused element is named with its group and the errno, and nothing is committed', async ({
    client,
  }) => {
    await client.commit(plan(NOTHING, WHOLE))
    const generation = client.generation()
    const values = SETS[1] ?? declare('values', {})
    const elements = [
      { element: { set: 'values', key: 'zzzz', data: 'bbbb', comment: '' }, group: 'ns1/good' },
      { element: { set: 'values', key: 'aaaa', data: 'zzzz', comment: '' }, group: 'ns1/bad' },
    ]
    const result = await client.commit([{ ...HERE, verb: 'add-elements', set: values, ...columns(elements) }])
    expect(result).toMatchObject({ outcome: 'refused', generation })
    expect(result.failures).toHaveLength(1)
    expect(result.failures[0]?.elements).toEqual([elements[1]])
    expect(result.failures[0]?.error.message).toMatch(/ns1\/bad.*EEXIST/)
  })

  test('a commit against an older generation is stale and changes nothing', async ({ target, client }) => {
    const { generation } = await client.list(ALL)
    const other = clientOf(target)
    await other.commit(plan(NOTHING, { tables: [tableOf('ip', [])] }))
    const late = await client.commit(plan(NOTHING, WHOLE), { generation })
    expect(late).toMatchObject({ outcome: 'stale', foreign: true, failures: [], generation: generation + 1 })
    expect((await client.list(ALL)).ruleset.tables).toHaveLength(1)
    await other.close()
  })

  test('a commit tells when somebody else committed since the last look', async ({ target, client }) => {
    client.generation()
    const own = await client.commit([{ ...HERE, verb: 'add-table', flags: 0, comment: undefined }])
    expect(own.foreign).toBe(false)
    expect(await client.commit([])).toMatchObject({ outcome: 'committed', foreign: false, messages: 0 })
    const other = clientOf(target)
    await other.commit([{ ...HERE, family: 'ip6', verb: 'add-table', flags: 0, comment: undefined }])
    expect(await client.commit([{ ...HERE, verb: 'delete-table' }])).toMatchObject({
      outcome: 'committed',
      foreign: true,
    })
    await other.close()
  })
}

function failures(test: TestAPI<Tools>): void {
  test('a refused batch is undone completely', async ({ client }) => {
    const broken = { ...HERE, verb: 'flush-chain', chain: 'missing' } as const
    await fc.assert(
      fc.asyncProperty(arbitraryRuleset, arbitraryRuleset, async (from, to) => {
        await walk(client, [from])
        const before = await client.list(ALL)
        const result = await client.commit([...difference(before.ruleset, to), broken])
        expect(result.outcome).toBe('refused')
        const after = await client.list(ALL)
        expect(after.generation).toBe(before.generation)
        expect(canonicalText(after.ruleset)).toBe(canonicalText(before.ruleset))
      }),
      { numRuns: runs(60) },
    )
  })

  test('every operation that fails has an error of its own, which names what is missing or busy', async ({
    client,
  }) => {
    const flush = { ...HERE, verb: 'flush-chain', chain: 'services' } as const
    const absent = await client.commit([flush])
    expect(absent.outcome).toBe('refused')
    expect(absent.failures[0]?.error.message).toMatch(/flush chain ip kube-proxy services.*ENOENT/)
    await client.commit(plan(NOTHING, WHOLE))
    const result = await client.commit([flush, { ...HERE, verb: 'delete-set', set: 'dispatch' }])
    expect(result.failures.map(({ error }) => error.message)).toEqual([
      'flush chain ip kube-proxy services: ENOENT (No such file or directory)',
      'delete set ip kube-proxy dispatch: EBUSY (Device or resource busy)',
    ])
  })

  test('whether a batch that changed nothing was committed is unknown', async ({ client }) => {
    await client.commit(plan(NOTHING, WHOLE))
    const [element] = ELEMENTS
    if (element === undefined) throw new Error('no element')
    const set = SETS[0] ?? declare('members', {})
    const again = { ...HERE, verb: 'add-elements', set, ...columns([{ element, group: '' }]) } as const
    expect(await client.commit([again])).toMatchObject({ outcome: 'unknown', failures: [] })
  })
}
