import { describe, expect, it } from 'vitest'
import { finish, systemClock } from '../../../../src/base/clock.ts'
import { createNftClient } from '../../../../src/kernel/nft/client.ts'
import { NF_INET_PRE_ROUTING } from '../../../../src/kernel/nft/constants.ts'
import { compileRule, type RuleCodec } from '../../../../src/kernel/xt/compile.ts'
import { printRule } from '../../../../src/kernel/xt/print.ts'
import { readRule } from '../../../../src/kernel/xt/read.ts'
import type { XtRule } from '../../../../src/kernel/xt/rule.ts'
import type { ScopeOperations, XtChain, XtEntry, XtJump } from '../../../../src/kernel/xt/scope.ts'
import { commitScope } from '../../../../src/kernel/xt/scope-commit.ts'
import { removalOf, ScopeDiff } from '../../../../src/kernel/xt/scope-diff.ts'
import { HandleCache } from '../../../../src/kernel/xt/scope-handles.ts'
import {
  type Asked,
  Committed,
  type Common,
  commonOf,
  heldInKernel,
  rewritesCommon,
} from '../../../../src/kernel/xt/scope-held.ts'
import { FakeKernel } from '../../../support/fake-kernel/kernel.ts'

const CODEC: RuleCodec = { compile: (rule, family) => compileRule(rule, family) }
const PLACE = { family: 'ip', table: 'nat' } as const
const isOurs = (_: unknown, name: string): boolean => name.startsWith('OURS')
const SCOPE = { codec: CODEC, isOurs }
const NOTHING: Asked = { chains: [], entries: [] }

function returning(text: string): XtRule {
  return { matches: [{ kind: 'comment', text }], target: { kind: 'RETURN' } }
}

function chain(rules: readonly string[], last: readonly string[]): XtChain {
  return { ...PLACE, name: 'OURS', rules: rules.map(returning), last: last.map(returning) }
}

function entry(text: string): XtEntry {
  return { ...PLACE, chain: 'OURS', rule: returning(text) }
}

const JUMP: XtJump = {
  ...PLACE,
  chain: 'PREROUTING',
  rule: { matches: [], target: { kind: 'jump', chain: 'OURS' } },
  removed: true,
}

function asking(...entries: readonly XtEntry[]): Asked {
  return { chains: [], entries }
}

/** Of an operation, the words that do not depend on how its rule became known. */
function wordsOf(operation: ScopeOperations[number]): string {
  const { verb } = operation
  const chain = 'chain' in operation ? operation.chain : ''
  if (!('rule' in operation)) return `${verb} ${chain}`
  const rule = 'compiled' in operation.rule ? readRule(operation.rule.compiled, 'ip') : operation.rule
  return `${verb} ${chain} ${printRule(rule, 'ip')}`
}

interface Side {
  readonly common: Common
  readonly asked: Asked
}

/** The operations after a commit that asked for `before`. */
function sinceCommit(before: Side, after: Side): ScopeOperations {
  const held = new Committed(before.common, () => before.asked)
  const diff = new ScopeDiff(held, after.common, SCOPE)
  diff.owner('someone', after.asked)
  return finish(diff.finish())
}

function world() {
  const kernel = new FakeKernel()
  const client = createNftClient({ transport: kernel.open(), clock: systemClock })
  const handleCache = new HandleCache()
  const slicing = { sliceMs: 10, nowMs: systemClock.nowMs, breathe: systemClock.breathe }
  const observe = async () => (await client.listChains([PLACE])).observed
  const texts = async (): Promise<Readonly<Record<string, readonly string[]>>> => {
    const chains = [...((await observe()).get('ip nat')?.chains.values() ?? [])]
    return Object.fromEntries(
      chains.map(({ name, rules }) => [
        name,
        rules.map(({ compiled }) =>
          printRule(readRule(compiled, 'ip'), 'ip').replace(/.*--comment (\w+) .*/, '$1'),
        ),
      ]),
    )
  }
  const commit = async (operations: ScopeOperations) => {
    const options = { client, handleCache, codec: CODEC, slicing, generation: undefined }
    const result = await commitScope(operations, options)
    expect(result.failures.map(({ error }) => error.message)).toEqual([])
    expect(result.outcome).toBe('committed')
  }
  const settle = async (common: XtChain, entries: readonly string[]) => {
    const diff = new ScopeDiff(heldInKernel(await observe()), commonOf([common], [JUMP]), SCOPE)
    diff.owner('someone', asking(...entries.map(entry)))
    const operations = finish(diff.finish())
    if (operations.length > 0) await commit(operations)
    return operations
  }
  return { client, observe, texts, commit, settle }
}

describe('a scope', () => {
  it('keeps entries between the rules that belong before and behind them', async () => {
    const { texts, commit, settle } = world()
    const common = chain(['first'], ['last'])
    await settle(common, ['a'])
    expect(await texts()).toEqual({ OURS: ['first', 'a', 'last'], PREROUTING: ['-j OURS'] })
    const shared = commonOf([common], [JUMP])
    await commit(
      sinceCommit(
        { common: shared, asked: asking(entry('a')) },
        { common: shared, asked: asking(entry('b'), entry('c')) },
      ),
    )
    expect(await texts()).toMatchObject({ OURS: ['first', 'b', 'c', 'last'] })
    await settle(common, ['b', 'c', 'd'])
    expect(await texts()).toMatchObject({ OURS: ['first', 'b', 'c', 'd', 'last'] })
    expect(await settle(common, ['d', 'c', 'b'])).toEqual([])
  })

  it('writes a common chain anew, entries and all, when what comes before them changes', async () => {
    const { texts, commit, settle } = world()
    const [before, after] = [chain(['first'], ['last']), chain(['other'], ['last', 'more'])]
    await settle(before, ['a', 'b'])
    const [old, now] = [commonOf([before], [JUMP]), commonOf([after], [JUMP])]
    expect(rewritesCommon(old, now)).toBe(true)
    const asked = asking(entry('a'), entry('b'))
    await commit(sinceCommit({ common: old, asked }, { common: now, asked }))
    expect(await texts()).toMatchObject({ OURS: ['other', 'a', 'b', 'last', 'more'] })
    expect(await settle(after, ['a', 'b'])).toEqual([])
  })

  it('changes what comes behind the entries, and jumps, without them', async () => {
    const { texts, commit, settle } = world()
    const [before, after] = [chain([], ['last']), chain([], ['end'])]
    await settle(before, ['a', 'b'])
    const [old, now] = [commonOf([before], [JUMP]), commonOf([after], [])]
    expect(rewritesCommon(old, now)).toBe(false)
    const operations = sinceCommit({ common: old, asked: NOTHING }, { common: now, asked: NOTHING })
    expect(operations.map(({ verb }) => verb)).toEqual(['add-rule', 'delete-rule', 'delete-rule'])
    await commit(operations)
    expect(await texts()).toEqual({ OURS: ['a', 'b', 'end'], PREROUTING: [] })
  })

  it.each([
    ['no rules', chain([], [])],
    ['rules', chain(['first'], [])],
  ])('lets entries stand in the order in which they are asked for, behind %s', async (_, common) => {
    const { texts, commit, settle } = world()
    const own = common.rules.length === 0 ? [] : ['first']
    await settle(common, [])
    const shared = commonOf([common], [JUMP])
    const asked = asking(...['counting', 'plain'].map(entry))
    await commit(sinceCommit({ common: shared, asked: NOTHING }, { common: shared, asked }))
    expect((await texts()).OURS).toEqual([...own, 'counting', 'plain'])
    await settle(common, ['counting', 'plain', 'more', 'most'])
    const others = (await texts()).OURS?.filter(text => text === 'more' || text === 'most')
    expect(others).toEqual(['more', 'most'])
  })

  it.each([
    ['no rules', chain([], [])],
    ['rules', chain(['first'], ['end'])],
  ])('puts entries of a sequence right that stand in another order, behind %s', async (_, common) => {
    const { client, observe, texts, commit } = world()
    const sequence = (text: string): XtEntry => ({ ...entry(text), sequence: 'one' })
    const settle = async (entries: readonly XtEntry[]) => {
      const diff = new ScopeDiff(heldInKernel(await observe()), commonOf([common], []), SCOPE)
      diff.owner('someone', asking(...entries))
      const operations = finish(diff.finish())
      if (operations.length > 0) await commit(operations)
      return operations
    }
    const written = async (...names: string[]) => {
      const rules = [...common.rules, ...names.map(returning), ...common.last]
      await client.commit([
        { verb: 'add-table', ...PLACE, flags: 0, comment: undefined },
        { verb: 'add-chain', ...PLACE, chain: { name: 'OURS', hook: undefined, rules: [] } },
        { verb: 'flush-chain', ...PLACE, chain: 'OURS' },
        ...rules.map(rule => ({
          ...PLACE,
          verb: 'add-rule' as const,
          chain: 'OURS',
          rule: compileRule(rule, 'ip'),
        })),
      ])
    }
    const orderOf = async () => (await texts()).OURS?.filter(text => ['a', 'b', 'c'].includes(text))
    const wanted = [sequence('a'), sequence('b'), sequence('c'), entry('other')]
    for (const names of [
      ['c', 'b', 'a', 'other'],
      ['other', 'b', 'a', 'c'],
      ['a', 'other', 'c'],
      ['c', 'other', 'b'],
      ['b', 'a'],
    ]) {
      await written(...names)
      await settle(wanted)
      expect(await orderOf()).toEqual(['a', 'b', 'c'])
      expect(await settle(wanted)).toEqual([])
    }
    await written('a', 'b', 'c', 'other')
    expect(await settle(wanted)).toEqual([])
    expect((await settle([entry('c'), entry('b'), entry('a'), entry('other')])).length).toBe(0)
    const shared = commonOf([common], [])
    for (const names of [
      ['a', 'c', 'other'],
      ['c', 'b', 'a', 'other'],
    ]) {
      await written(...names)
      const before = asking(...names.map(name => (name === 'other' ? entry(name) : sequence(name))))
      await commit(
        sinceCommit({ common: shared, asked: before }, { common: shared, asked: asking(...wanted) }),
      )
      expect(await orderOf()).toEqual(['a', 'b', 'c'])
    }
  })

  it('leaves a jump that is to stay, wanted or not', async () => {
    const { texts, commit, settle } = world()
    const common = chain([], [])
    await settle(common, [])
    const staying = commonOf([common], [{ ...JUMP, removed: false }])
    const none = commonOf([common], [])
    await commit(sinceCommit({ common: staying, asked: NOTHING }, { common: none, asked: NOTHING }))
    expect((await texts()).PREROUTING).toEqual(['-j OURS'])
  })

  it('finds the same operations whether the left-hand side was read or committed', async () => {
    const { observe, settle } = world()
    const before = commonOf([chain(['first'], ['last'])], [JUMP])
    await settle(chain(['first'], ['last']), ['a', 'b', 'c'])
    const held = heldInKernel(await observe())
    const asked = asking(...['a', 'b', 'c'].map(entry))
    const own: XtChain = { ...PLACE, name: 'OURS-OWN', rules: [returning('own')], last: [] }
    for (const [common, wanted] of [
      [before, asked],
      [before, asking(entry('c'), entry('d'))],
      [before, { chains: [own], entries: [entry('a')] }],
      [commonOf([chain(['other'], ['last'])], [JUMP]), asked],
      [commonOf([chain(['first'], ['last', 'more'])], [JUMP]), asking(entry('a'), entry('b'))],
    ] as const) {
      const diff = new ScopeDiff(held, common, SCOPE)
      diff.owner('someone', wanted)
      const read = finish(diff.finish())
      const committed = sinceCommit({ common: before, asked }, { common, asked: wanted })
      expect(committed.map(wordsOf)).toEqual(read.map(wordsOf))
    }
  })

  it('makes a chain of its own anew that somebody hung into the way of packets', async () => {
    const { client, texts, settle } = world()
    const hook = { type: 'nat', hooknum: NF_INET_PRE_ROUTING, priority: -90 } as const
    await client.commit([
      { verb: 'add-table', ...PLACE, flags: 0, comment: undefined },
      { verb: 'add-chain', ...PLACE, chain: { name: 'OURS', hook, rules: [] } },
      { verb: 'add-rule', ...PLACE, chain: 'OURS', rule: compileRule(returning('theirs'), 'ip') },
      { verb: 'add-chain', ...PLACE, chain: { name: 'OURS-OLD', hook, rules: [] } },
    ])
    await settle(chain([], ['last']), ['a'])
    expect(await texts()).toEqual({ OURS: ['a', 'last'], PREROUTING: ['-j OURS'] })
    expect(await settle(chain([], ['last']), ['a'])).toEqual([])
  })

  it('goes as it came, and leaves base chains', async () => {
    const { observe, texts, commit, settle } = world()
    await settle(chain(['first'], ['last']), ['a'])
    await commit(removalOf(await observe(), { isOurs, jumps: [JUMP] }, CODEC))
    expect(await texts()).toEqual({ PREROUTING: [] })
    expect(removalOf(await observe(), { isOurs, jumps: [JUMP] }, CODEC)).toEqual([])
  })

  it('says which rule it is that the kernel refuses', async () => {
    const { client, settle } = world()
    await settle(chain([], []), [])
    const counting: XtRule = { matches: [{ kind: 'nfacct', name: 'none' }], target: { kind: 'RETURN' } }
    const operation: ScopeOperations[number] = {
      ...PLACE,
      verb: 'add-rule',
      chain: 'OURS',
      rule: counting,
      owner: 'someone',
    }
    const slicing = { sliceMs: 10, nowMs: systemClock.nowMs, breathe: systemClock.breathe }
    const options = { client, handleCache: new HandleCache(), codec: CODEC, slicing, generation: undefined }
    const { outcome, failures } = await commitScope([operation], options)
    expect(outcome).toBe('refused')
    expect(failures.map(({ error }) => error.message)).toEqual([
      expect.stringMatching(/^add rule ip nat OURS: ENOENT .*: -m nfacct --nfacct-name\s+none -j RETURN$/),
    ])
    expect(failures[0]?.operation).toBe(operation)
  })

  it('says whose entry it is that has nowhere to go', () => {
    const none = commonOf([], [])
    const message = 'ip nat OURS: entries in a chain that is not common'
    const diff = new ScopeDiff(heldInKernel(new Map()), none, SCOPE)
    expect(() => diff.owner('someone', asking(entry('a')))).toThrow(message)
    expect(() => new Committed(none, () => asking(entry('a'))).enter('someone')).toThrow(message)
  })
})
