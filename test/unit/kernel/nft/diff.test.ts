import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { PersistentMap } from '../../../../src/base/collections.ts'
import { diffRulesets, type RulesetDiff } from '../../../../src/kernel/nft/diff.ts'
import type { Chain, Element, Ruleset, Table } from '../../../../src/kernel/nft/state.ts'
import { arbitraryRuleset, grouped, LATE_SETS, set } from '../../../support/fake-kernel/random-rulesets.ts'
import { applyTransaction, canonicalText } from '../../../support/fake-kernel/ruleset-model.ts'
import { IS_QUICK, runs } from '../../../support/runs.ts'

const NOTHING: Ruleset = { tables: [] }

describe('diffing random rulesets', () => {
  test('says exactly what the kernel holds after each transaction, and arrives', () => {
    fc.assert(
      fc.property(arbitraryRuleset, arbitraryRuleset, (from, to) => walk(from, [to])),
      { numRuns: runs(400) },
    )
  })

  test('arrives when the goal changes while removals are waiting', () => {
    const goals = fc.array(arbitraryRuleset, { minLength: 2, maxLength: 5 })
    fc.assert(
      fc.property(goals, states => walk(NOTHING, states)),
      { numRuns: runs(200) },
    )
  })
})

/** Goes to each goal by one transaction, and to the last by as many as it takes. */
function walk(start: Ruleset, goals: readonly Ruleset[]): void {
  let held = start
  let believed = start
  for (const goal of goals) ({ held, believed } = step(held, believed, goal))
  const last = goals.at(-1) ?? start
  for (let i = 0; i < 4 && believed !== last; i++) ({ held, believed } = step(held, believed, last))
  expect(believed).toBe(last)
  expect(canonicalText(held)).toBe(canonicalText(last))
  expect(diff(believed, last).transaction).toEqual([])
  expect(diff(held, last).transaction).toEqual([])
}

function step(held: Ruleset, believed: Ruleset, goal: Ruleset): { held: Ruleset; believed: Ruleset } {
  const { transaction, after, complete } = diff(believed, goal)
  const next = applyTransaction(held, transaction)
  expect(canonicalText(next)).toBe(canonicalText(after))
  expect(complete).toBe(after === goal)
  return { held: next, believed: after }
}

describe('diffing', () => {
  test('leaves elements that packets made alone', () => {
    const remembered: Element = { set: 'affinity', key: 'c', data: 'id', comment: '', expiresMs: 700 }
    expect(diff(rulesetOf({ groups: { affinity: [remembered] } }), rulesetOf({})).transaction).toEqual([])
  })

  test('sends nothing when both sides are the same value', () => {
    const ruleset = rulesetOf({ groups: { a: [slot('k', 'x')] } })
    expect(diff(ruleset, ruleset)).toEqual({ transaction: [], after: ruleset, complete: true })
  })

  test('lets a slot that leaves a living group wait for the next transaction', () => {
    const from = rulesetOf({ groups: { a: [service('s', '2'), slot('k', 'x'), slot('l', 'x')] } })
    const to = rulesetOf({ groups: { a: [service('s', '1'), slot('k', 'x')] } })
    const first = diff(from, to)
    expect(verbs(first)).toEqual(['delete-elements services s', 'add-elements services s'])
    expect(first.complete).toBe(false)
    const second = diff(first.after, to)
    expect(verbs(second)).toEqual(['delete-elements slots l'])
    expect(second).toMatchObject({ complete: true, after: to })
  })

  test('keeps a waiting slot that is wanted again as it is, and replaces it when its data differ', () => {
    const from = rulesetOf({ groups: { a: [slot('k', 'x'), slot('l', 'x')] } })
    const { after } = diff(from, rulesetOf({ groups: { a: [] } }))
    expect(verbs(diff(after, from))).toEqual([])
    const other = rulesetOf({ groups: { a: [slot('k', 'x'), slot('l', 'y')] } })
    expect(verbs(diff(after, other))).toEqual(['delete-elements slots l', 'add-elements slots l'])
  })

  test('adds to sets that packets read last before it adds to others', () => {
    const to = rulesetOf({ groups: { a: [service('s', '1'), slot('k', 'x')], b: [slot('l', 'x')] } })
    expect(verbs(diff(rulesetOf({}), to))).toEqual(['add-elements slots k l', 'add-elements services s'])
  })

  test('leaves a chain as it is while an element that leads to it waits', () => {
    const lead: Element = { set: 'dispatch', key: 'd', data: { code: -4, chain: 'old' }, comment: '' }
    const counter = { expressions: [{ kind: 'counter' as const }], comment: '' }
    const further = {
      expressions: [{ kind: 'verdict' as const, verdict: { code: -4, chain: 'next' } }],
      comment: '',
    }
    const chains: Chain[] = [
      { name: 'old', hook: undefined, rules: [further] },
      { name: 'next', hook: undefined, rules: [counter] },
    ]
    const to = rulesetOf({ groups: { d: [] } })
    const first = diff(rulesetOf({ groups: { d: [lead] }, chains }), to)
    expect(verbs(first)).toEqual([])
    const second = diff(first.after, to)
    expect(verbs(second)).toEqual(['delete-elements dispatch d', 'flush-chain', 'flush-chain'])
    expect(verbs(diff(second.after, to))).toEqual(['delete-chain', 'delete-chain'])
  })

  test('replaces a table whose set is declared otherwise, and keeps what packets made', () => {
    const remembered: Element = { set: 'affinity', key: 'c', data: 'id', comment: '', expiresMs: 700 }
    const from = rulesetOf({ groups: { a: [slot('k', 'x')], affinity: [remembered] } })
    const to = rulesetOf({ groups: { a: [slot('k', 'x')] }, slotsSize: 64 })
    const change = diff(from, to)
    expect(verbs(change).slice(0, 3)).toEqual(['add-table', 'delete-table', 'add-table'])
    expect(verbs(change).slice(-2)).toEqual(['add-elements slots k', 'add-elements affinity c'])
    expect(change).toMatchObject({ complete: true, after: to })
  })

  test('does not delete an anonymous set, which goes with its rule', () => {
    const from = rulesetOf({ extraSets: [set('__set0', { flags: 1 | 2 }), set('theirs', {})] })
    expect(diff(from, rulesetOf({})).transaction).toEqual([
      { family: 'ip', table: 'kube-proxy', verb: 'delete-set', set: 'theirs' },
    ])
  })
})

function diff(from: Ruleset, to: Ruleset): RulesetDiff {
  return diffRulesets(from, to, { lateSets: LATE_SETS })
}

/** `verb`, and for elements their set and keys. */
function verbs({ transaction }: RulesetDiff): readonly string[] {
  return transaction.map(op =>
    op.verb === 'add-elements' || op.verb === 'delete-elements'
      ? `${op.verb} ${op.set.name} ${op.elements.map(({ key }) => key).join(' ')}`
      : op.verb,
  )
}

function slot(key: string, data: string): Element {
  return { set: 'slots', key, data, comment: '' }
}

function service(key: string, data: string): Element {
  return { set: 'services', key, data, comment: '' }
}

interface Parts {
  readonly groups?: Readonly<Record<string, readonly Element[]>>
  readonly chains?: readonly Chain[]
  readonly slotsSize?: number
  readonly extraSets?: readonly ReturnType<typeof set>[]
}

function rulesetOf({ groups = {}, chains = [], slotsSize = 16, extraSets = [] }: Parts): Ruleset {
  const sets = [
    set('services', { flags: 8, dataType: 19, dataLength: 4 }),
    set('slots', { flags: 8, dataType: 7, dataLength: 4, size: slotsSize }),
    set('dispatch', { flags: 8, dataType: 0xffffff00, dataLength: 16 }),
    set('affinity', { flags: 56, dataType: 19, dataLength: 4, timeoutMs: 1000 }),
    ...extraSets,
  ]
  const elements = Object.entries(groups).flatMap(([g, members]) => members.map(e => [g, e] as const))
  const table: Table = {
    family: 'ip',
    name: 'kube-proxy',
    flags: 0,
    comment: undefined,
    sets: new Map(sets.map(s => [s.name, s] as const)),
    chains: new Map(chains.map(c => [c.name, c] as const)),
    // A group without elements is a group that lives on.
    elements: grouped(elements).with(
      Object.keys(groups)
        .filter(g => groups[g]?.length === 0)
        .map(g => [g, []]),
    ),
  }
  return { tables: [table] }
}

test.skipIf(IS_QUICK)('a full load of 30,000 groups is one operation', () => {
  const groups: [string, Element[]][] = []
  for (let i = 0; i < 30_000; i++) {
    groups.push([
      `ns-${i % 100}/service-${i}:http/TCP/IPv4`,
      ['a', 'b', 'c', 'd', 'e'].map(k => slot(`${k}${i}`, 'x')),
    ])
  }
  const base = rulesetOf({})
  const to = { tables: base.tables.map(table => ({ ...table, elements: PersistentMap.from(groups) })) }
  expect(diff(base, to).transaction).toHaveLength(1)
})
