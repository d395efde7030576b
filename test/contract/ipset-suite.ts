import { expect, type TestAPI, test } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { PersistentMap } from '../../src/base/collections.ts'
import { createNftClient } from '../../src/kernel/nft/client.ts'
import { diffRulesets } from '../../src/kernel/nft/diff.ts'
import type { Chain, ChainHook, Expression, NftFamily, Ruleset, Table } from '../../src/kernel/nft/state.ts'
import type { Transaction } from '../../src/kernel/nft/transaction.ts'
import { canonicalText } from '../support/fake-kernel/ruleset-model.ts'
import * as of from './objects.ts'
import { lent, type TargetFactory, type Tools } from './target.ts'
import { batch, generationOf, received } from './wire.ts'

const FAMILIES = ['ip', 'ip6'] as const
const ALL = FAMILIES.map(family => ({ family, name: 't' }))
const NAMES = { ip: ['KUBE-CLUSTER-IP', 'KUBE-LOOP-BACK'], ip6: ['KUBE-6-CLUSTER-IP', 'KUBE-6-LOOP-BACK'] }
/** Every hook that rules of ours are called from, and those of filters. */
const HOOKS: readonly ChainHook[] = [
  { type: 'nat', hooknum: 0, priority: -100 },
  { type: 'nat', hooknum: 3, priority: -100 },
  { type: 'nat', hooknum: 4, priority: 100 },
  { type: 'filter', hooknum: 0, priority: -150 },
  { type: 'filter', hooknum: 2, priority: 0 },
]

/** Rules about ipsets: by name up here, by number down there. */
export function ipsetSuite(factory: TargetFactory): void {
  const tools = test.extend<Tools>({
    async target({ task: _ }, use) {
      const target = factory()
      for (const family of FAMILIES) for (const name of NAMES[family]) target.createIpset(name, family)
      await use(target)
    },
    client: ({ target }, use) =>
      lent(createNftClient({ transport: target.open(), clock: systemClock, ipsets: target.ipsets() }), use),
  })
  writing(tools)
  namesAndChecks(tools)
}

function writing(test: TestAPI<Tools>): void {
  test('are read back as they were written, in both families and at every hook', async ({ client }) => {
    const wanted = rulesetOf('KUBE-CLUSTER-IP', 'KUBE-6-CLUSTER-IP')
    expect(await client.commit(plan(NOTHING, wanted))).toMatchObject({ outcome: 'committed', failures: [] })
    const { ruleset } = await client.list(ALL)
    expect(canonicalText(ruleset)).toBe(canonicalText(wanted))
    expect(plan(ruleset, wanted)).toEqual([])
  })

  test('are told apart by their sets', async ({ client }) => {
    const wanted = rulesetOf('KUBE-LOOP-BACK', 'KUBE-6-LOOP-BACK')
    await client.commit(plan(NOTHING, rulesetOf('KUBE-CLUSTER-IP', 'KUBE-6-CLUSTER-IP')))
    const { ruleset } = await client.list(ALL)
    expect(await client.commit(plan(ruleset, wanted))).toMatchObject({ outcome: 'committed' })
    expect(plan((await client.list(ALL)).ruleset, wanted)).toEqual([])
  })

  test('about a set that does not exist are not sent, and the error names it', async ({ client }) => {
    const generation = client.generation()
    const transaction = plan(NOTHING, { tables: [tableOf('ip', 'NO-SUCH-SET', HOOKS.slice(0, 1))] })
    await expect(client.commit(transaction)).rejects.toThrow(/match ipset NO-SUCH-SET: ENOENT/)
    expect(client.generation()).toBe(generation)
  })
}

function namesAndChecks(test: TestAPI<Tools>): void {
  test('show the number of a set whose name nobody knows, so that they are written anew', async ({
    target,
    client,
  }) => {
    const wanted = rulesetOf('KUBE-CLUSTER-IP', 'KUBE-6-CLUSTER-IP')
    await client.commit(plan(NOTHING, wanted))
    const nameless = createNftClient({ transport: target.open(), clock: systemClock })
    const { ruleset } = await nameless.list(ALL)
    expect(canonicalText(ruleset)).toMatch(/\[ipset \d+\]/)
    expect(plan(ruleset, wanted).filter(({ verb }) => verb === 'add-rule')).toHaveLength(2 * HOOKS.length * 4)
    await expect(nameless.commit(plan(ruleset, wanted))).rejects.toThrow('there is no such set')
    await nameless.close()
  })

  test('are checked by the kernel', ({ target }) => {
    const socket = target.open()
    const index = target.ipsets().indexOf('KUBE-CLUSTER-IP') ?? 255
    const refusals = (match: Buffer): readonly string[] => {
      socket.sendSync(batch([of.table(), of.chain('c'), of.rule('c', match)]))
      return received(socket)
    }
    const info = (head: readonly number[], length = 48) => [...head, ...Array(length - 4).fill(0)]
    const before = generationOf(socket)
    expect(refusals(of.match('set', 4, info([99, 0, 1, 0])))).toEqual(['4 ENOENT @40'])
    expect(refusals(of.match('set', 4, info([index, 0, 7, 0])))).toEqual(['4 ERANGE @40'])
    expect(refusals(of.match('set', 9, info([index, 0, 1, 0])))).toEqual(['4 ENOENT @40'])
    expect(refusals(of.match('sets', 4, info([index, 0, 1, 0])))).toEqual(['4 ENOENT @40'])
    expect(refusals(of.match('set', 4, info([index, 0, 1, 0], 44)))).toEqual(['4 EINVAL @40'])
    expect(refusals(of.match('set', 4, info([index, 0, 1, 0], 56)))).toEqual(['4 EINVAL @40'])
    expect(refusals(of.match('set', undefined, info([index, 0, 1, 0])))).toEqual(['4 EINVAL @40'])
    expect(generationOf(socket)).toBe(before)
    expect(refusals(of.match('set', 4, info([index, 0, 6, 0x7f])))).toEqual([])
  })
}

const NOTHING: Ruleset = { tables: [] }

function plan(from: Ruleset, to: Ruleset): Transaction {
  return diffRulesets(from, to, { lateSets: new Set() }).transaction
}

function rulesetOf(set: string, set6: string): Ruleset {
  return { tables: [tableOf('ip', set, HOOKS), tableOf('ip6', set6, HOOKS)] }
}

function tableOf(family: NftFamily, set: string, hooks: readonly ChainHook[]): Table {
  const chains = hooks.map((hook, i): Chain => {
    const rules = matchesOf(set).map(expression => ({ expressions: [expression, ACCEPT], comment: 'why' }))
    return { name: `c${i}`, hook, rules }
  })
  const byName = new Map(chains.map(chain => [chain.name, chain] as const))
  const bare = { family, name: 't', flags: 0, comment: undefined, sets: new Map() }
  return { ...bare, chains: byName, elements: PersistentMap.from([]) }
}

const ACCEPT: Expression = { kind: 'verdict', verdict: { code: 1, chain: undefined } }

function matchesOf(set: string): readonly Expression[] {
  const match = { kind: 'ipset', set } as const
  return [
    { ...match, dimensions: ['dst', 'dst'], inverted: false },
    { ...match, dimensions: ['dst', 'dst', 'src'], inverted: false },
    { ...match, dimensions: ['src'], inverted: true },
    { ...match, dimensions: ['src', 'dst', 'src', 'dst', 'dst', 'src'], inverted: true },
  ]
}
