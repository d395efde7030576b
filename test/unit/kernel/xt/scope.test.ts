import { describe, expect, it } from 'vitest'
import { systemClock } from '../../../../src/base/clock.ts'
import { finish } from '../../../../src/base/steps.ts'
import { createNftClient } from '../../../../src/kernel/nft/client.ts'
import { NF_INET_PRE_ROUTING } from '../../../../src/kernel/nft/constants.ts'
import { compileRule } from '../../../../src/kernel/xt/compile.ts'
import { printRule } from '../../../../src/kernel/xt/print.ts'
import { readRule } from '../../../../src/kernel/xt/read.ts'
import type { XtRule } from '../../../../src/kernel/xt/rule.ts'
import type { XtChain, XtEntry, XtJump } from '../../../../src/kernel/xt/scope.ts'
import { commonOf, ScopeChanges } from '../../../../src/kernel/xt/scope-changes.ts'
import { removalOf } from '../../../../src/kernel/xt/scope-cleanup.ts'
import { commitScope } from '../../../../src/kernel/xt/scope-commit.ts'
import { HandleBook } from '../../../../src/kernel/xt/scope-handles.ts'
import { type Language, ObservedChanges } from '../../../../src/kernel/xt/scope-observed.ts'
import type { ScopeOperations } from '../../../../src/kernel/xt/scope-operation.ts'
import { FakeKernel } from '../../../support/fake-kernel/kernel.ts'

const LANGUAGE: Language = { compile: (rule, family) => compileRule(rule, family) }
const PLACE = { family: 'ip', table: 'nat' } as const
const isOurs = (_: unknown, name: string): boolean => name.startsWith('OURS')

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

function world() {
  const kernel = new FakeKernel()
  const client = createNftClient({ transport: kernel.open(), clock: systemClock })
  const book = new HandleBook()
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
    const options = { client, book, language: LANGUAGE, slicing, generation: undefined }
    const result = await commitScope(operations, options)
    expect(result.failures.map(({ error }) => error.message)).toEqual([])
    expect(result.outcome).toBe('committed')
  }
  const settle = async (common: XtChain, entries: readonly string[]) => {
    const changes = new ObservedChanges(await observe(), LANGUAGE, isOurs)
    changes.common(common)
    changes.jump(JUMP)
    for (const text of entries) changes.entry('someone', entry(text))
    const operations = finish(changes.finish())
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
    const changes = new ScopeChanges(shared, shared)
    changes.owner(
      'someone',
      { chains: [], entries: [entry('a')] },
      { chains: [], entries: [entry('b'), entry('c')] },
    )
    await commit(finish(changes.finish()))
    expect(await texts()).toMatchObject({ OURS: ['first', 'b', 'c', 'last'] })
    await settle(common, ['b', 'c', 'd'])
    expect(await texts()).toMatchObject({ OURS: ['first', 'b', 'c', 'd', 'last'] })
    expect(await settle(common, ['d', 'c', 'b'])).toEqual([])
  })

  it('writes a common chain anew, entries and all, when what comes before them changes', async () => {
    const { texts, commit, settle } = world()
    const [before, after] = [chain(['first'], ['last']), chain(['other'], ['last', 'more'])]
    await settle(before, ['a', 'b'])
    const changes = new ScopeChanges(commonOf([before], [JUMP]), commonOf([after], [JUMP]))
    expect(changes.concernsAll).toBe(true)
    const asked = { chains: [], entries: [entry('a'), entry('b')] }
    changes.owner('someone', asked, asked)
    await commit(finish(changes.finish()))
    expect(await texts()).toMatchObject({ OURS: ['other', 'a', 'b', 'last', 'more'] })
    expect(await settle(after, ['a', 'b'])).toEqual([])
  })

  it('changes what comes behind the entries, and jumps, without them', async () => {
    const { texts, commit, settle } = world()
    const [before, after] = [chain([], ['last']), chain([], ['end'])]
    await settle(before, ['a', 'b'])
    const changes = new ScopeChanges(commonOf([before], [JUMP]), commonOf([after], []))
    expect(changes.concernsAll).toBe(false)
    const operations = finish(changes.finish())
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
    const changes = new ScopeChanges(shared, shared)
    const asked = { chains: [], entries: ['counting', 'plain'].map(entry) }
    changes.owner('someone', { chains: [], entries: [] }, asked)
    await commit(finish(changes.finish()))
    expect((await texts())['OURS']).toEqual([...own, 'counting', 'plain'])
    await settle(common, ['counting', 'plain', 'more', 'most'])
    const others = (await texts())['OURS']?.filter(text => text === 'more' || text === 'most')
    expect(others).toEqual(['more', 'most'])
  })

  it.each([
    ['no rules', chain([], [])],
    ['rules', chain(['first'], ['end'])],
  ])('puts entries of a sequence right that stand in another order, behind %s', async (_, common) => {
    const { client, observe, texts, commit } = world()
    const sequence = (text: string): XtEntry => ({ ...entry(text), sequence: 'one' })
    const settle = async (entries: readonly XtEntry[]) => {
      const changes = new ObservedChanges(await observe(), LANGUAGE, isOurs)
      changes.common(common)
      for (const each of entries) changes.entry('someone', each)
      const operations = finish(changes.finish())
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
    const orderOf = async () => (await texts())['OURS']?.filter(text => ['a', 'b', 'c'].includes(text))
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
    const changes = new ScopeChanges(shared, shared)
    const asked = (...entries: XtEntry[]) => ({ chains: [], entries })
    await written('a', 'c', 'other')
    changes.owner('someone', asked(sequence('a'), sequence('c'), entry('other')), asked(...wanted))
    await commit(finish(changes.finish()))
    expect(await orderOf()).toEqual(['a', 'b', 'c'])
  })

  it('leaves a jump that is to stay, wanted or not', async () => {
    const { texts, commit, settle } = world()
    const common = chain([], [])
    await settle(common, [])
    const changes = new ScopeChanges(
      commonOf([common], [{ ...JUMP, removed: false }]),
      commonOf([common], []),
    )
    await commit(finish(changes.finish()))
    expect((await texts())['PREROUTING']).toEqual(['-j OURS'])
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
    await commit(removalOf(await observe(), { isOurs, jumps: [JUMP] }, LANGUAGE))
    expect(await texts()).toEqual({ PREROUTING: [] })
    expect(removalOf(await observe(), { isOurs, jumps: [JUMP] }, LANGUAGE)).toEqual([])
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
    const options = { client, book: new HandleBook(), language: LANGUAGE, slicing, generation: undefined }
    const { outcome, failures } = await commitScope([operation], options)
    expect(outcome).toBe('refused')
    expect(failures.map(({ error }) => error.message)).toEqual([
      expect.stringMatching(/^add rule ip nat OURS: ENOENT .*: -m nfacct --nfacct-name\s+none -j RETURN$/),
    ])
    expect(failures[0]?.operation).toBe(operation)
  })

  it('says whose entry it is that has nowhere to go', () => {
    const changes = new ObservedChanges(new Map(), LANGUAGE, isOurs)
    expect(() => changes.entry('someone', entry('a'))).toThrow(
      'ip nat OURS: entries in a chain that is not common',
    )
  })
})
