import { describe, expect, it } from 'vitest'
import { systemClock } from '../../../../src/base/clock.ts'
import { createNftClient } from '../../../../src/kernel/nft/client.ts'
import { NF_INET_PRE_ROUTING } from '../../../../src/kernel/nft/constants.ts'
import type { CompiledRule } from '../../../../src/kernel/nft/state.ts'
import type { Operation } from '../../../../src/kernel/nft/transaction.ts'
import { compileRule, type RuleCodec } from '../../../../src/kernel/xt/compile.ts'
import { printRule } from '../../../../src/kernel/xt/print.ts'
import { readRule } from '../../../../src/kernel/xt/read.ts'
import type { XtRule } from '../../../../src/kernel/xt/rule.ts'
import {
  type FixedRules,
  fixedRules,
  type ScopeOperations,
  type XtChain,
  type XtJump,
} from '../../../../src/kernel/xt/scope.ts'
import { commitScope } from '../../../../src/kernel/xt/scope-commit.ts'
import { removalOf, ScopeDiff } from '../../../../src/kernel/xt/scope-diff.ts'
import type { OwnedEntry } from '../../../../src/kernel/xt/scope-draft.ts'
import { WrittenDiff } from '../../../../src/kernel/xt/scope-written.ts'
import { unencodable } from '../../../../src/netlink/errors.ts'
import { FakeKernel } from '../../../support/fake-kernel/kernel.ts'

const CODEC: RuleCodec = { compile: (rule, family) => compileRule(rule, family) }
const PLACE = { family: 'ip', table: 'nat' } as const
const LIST = 'ip nat OURS'
const isOurs = (_: unknown, name: string): boolean => name.startsWith('OURS')

function returning(text: string): XtRule {
  return { matches: [{ kind: 'comment', text }], target: { kind: 'RETURN' } }
}

function chain(rules: readonly string[], last: readonly string[], name = 'OURS'): XtChain {
  return { ...PLACE, name, rules: rules.map(returning), last: last.map(returning) }
}

const JUMP: XtJump = {
  ...PLACE,
  chain: 'PREROUTING',
  rule: { matches: [], target: { kind: 'jump', chain: 'OURS' } },
  removed: true,
}

/** The fixed rules with the texts of the entries of one Service in their chain. */
interface Side {
  readonly fixed: FixedRules
  readonly entries: readonly string[]
  readonly own?: readonly XtChain[]
}

function side(list: XtChain, ...entries: readonly string[]): Side {
  return { fixed: fixedRules([list], [JUMP]), entries }
}

function owned(texts: readonly string[]): readonly OwnedEntry[] {
  return texts.map(text => ({ rule: returning(text), owner: 'someone' }))
}

function sinceCommit(before: Side, after: Side): ScopeOperations {
  const diff = new WrittenDiff(before.fixed, after.fixed)
  const rulesOf = ({ entries, own = [] }: Side) => ({
    chains: own,
    entries: entries.map(text => ({ ...PLACE, chain: 'OURS', rule: returning(text) })),
  })
  diff.compare('someone', rulesOf(before), rulesOf(after))
  const lists = diff.changedChains.has(LIST) ? [[LIST, owned(after.entries)] as const] : []
  return diff.finish(new Map(lists))
}

function textOf({ compiled }: { readonly compiled: string }): string {
  return printRule(readRule(compiled, 'ip'), 'ip').replace(/.*--comment (\w+) .*/, '$1')
}

function world() {
  const client = createNftClient({ transport: new FakeKernel().open(), clock: systemClock })
  const observe = async () => (await client.listChains([PLACE])).observed
  const texts = async (): Promise<Readonly<Record<string, readonly string[]>>> => {
    const chains = [...((await observe()).get('ip nat')?.chains.values() ?? [])]
    return Object.fromEntries(chains.map(({ name, rules }) => [name, rules.map(textOf)]))
  }
  const send = (operations: ScopeOperations, generation?: number) => {
    const slicing = { sliceMs: 10, nowMs: systemClock.nowMs, breathe: systemClock.breathe }
    return commitScope(operations, { client, codec: CODEC, slicing, generation })
  }
  const commit = async (operations: ScopeOperations) => {
    const result = await send(operations)
    expect(result.failures.map(({ error }) => error.message)).toEqual([])
    expect(result.outcome).toBe('committed')
  }
  const sinceRead = async ({ fixed, own = [] }: Side, entries: readonly OwnedEntry[]) => {
    const diff = new ScopeDiff(await observe(), { codec: CODEC, isOurs })
    for (const each of own) diff.want({ chain: each, owner: 'someone', entries: [] })
    for (const each of fixed.chains.values()) diff.want({ chain: each, owner: undefined, entries })
    return diff.finish(fixed.jumps)
  }
  const settle = async (wanted: Side, entries = owned(wanted.entries)) => {
    const operations = await sinceRead(wanted, entries)
    if (operations.length > 0) await commit(operations)
    return operations
  }
  /** Makes OURS anew with these rules, and adds rules to PREROUTING. */
  const write = async (ours: readonly (XtRule | CompiledRule)[], prerouting: readonly XtRule[] = []) => {
    const add = (name: string, rule: XtRule | CompiledRule): Operation => ({
      ...PLACE,
      verb: 'add-rule',
      chain: name,
      rule: 'compiled' in rule ? rule : compileRule(rule, 'ip'),
    })
    const made = (name: string): Operation => ({
      ...PLACE,
      verb: 'add-chain',
      chain: { name, hook: undefined, rules: [] },
    })
    const { outcome } = await client.commit([
      { verb: 'add-table', ...PLACE, flags: 0, comment: undefined },
      ...['OURS', 'PREROUTING'].map(made),
      { verb: 'flush-chain', ...PLACE, chain: 'OURS' },
      ...ours.map(rule => add('OURS', rule)),
      ...prerouting.map(rule => add('PREROUTING', rule)),
    ])
    expect(outcome).toBe('committed')
  }
  return { client, observe, texts, send, commit, sinceRead, settle, write }
}

const verbsOf = (operations: ScopeOperations) => operations.map(({ verb }) => verb)

describe('the diff from what was read', () => {
  it('writes a list anew, with its entries between the rules before and after them', async () => {
    const { texts, settle } = world()
    const list = chain(['first'], ['last'])
    await settle(side(list, 'a'))
    expect(await texts()).toEqual({ OURS: ['first', 'a', 'last'], PREROUTING: ['-j OURS'] })
    expect(verbsOf(await settle(side(list, 'b', 'c')))).toEqual(['flush-chain', ...Array(4).fill('add-rule')])
    expect(await texts()).toMatchObject({ OURS: ['first', 'b', 'c', 'last'] })
  })

  it('keeps a list whose entries are in another order, and none with a rule too many or misplaced', async () => {
    const { texts, settle, write } = world()
    const wanted = side(chain(['first'], ['last', 'end']), 'a', 'b', 'c')
    await settle(wanted)
    for (const there of ['first c a b end last', 'first b c a last end']) {
      await write(there.split(' ').map(returning))
      expect(await settle(wanted)).toEqual([])
    }
    for (const there of ['a first b c last end', 'first a b last c end', 'first a b c d last end', '']) {
      await write(there.split(' ').map(returning))
      await settle(wanted)
      expect((await texts()).OURS).toEqual(['first', 'a', 'b', 'c', 'last', 'end'])
    }
  })

  it('keeps a list only if the entries of a sequence are in order', async () => {
    const { texts, settle, write } = world()
    const wanted = side(chain(['first'], []))
    const entries = owned(['a', 'b', 'other']).map(entry =>
      entry.rule === undefined
        ? entry
        : { ...entry, ...(textsOf(entry) === 'other' ? {} : { sequence: 'one' }) },
    )
    await settle(wanted, entries)
    await write(['first', 'other', 'a', 'b'].map(returning))
    expect(await settle(wanted, entries)).toEqual([])
    await write(['first', 'b', 'other', 'a'].map(returning))
    await settle(wanted, entries)
    expect((await texts()).OURS).toEqual(['first', 'a', 'b', 'other'])
  })

  it('keeps rules that another program wrote in other bytes', async () => {
    const { client, sinceRead, write } = world()
    const tcp = { protocol: { number: 6, inverted: false }, target: { kind: 'RETURN' } } as const
    const ports = { from: 80, to: 80, inverted: false }
    const native: XtRule = { ...tcp, matches: [{ kind: 'tcp', destinationPorts: ports }] }
    // Versions of iptables that know no native comparison of ports write it in this way.
    const any = compileRule({ ...tcp, matches: [{ kind: 'tcp' }] }, 'ip')
    const compiled = any.compiled.replace('\0\0\xff\xff\0\0\xff\xff', '\0\0\xff\xff\x50\0\x50\0')
    await write([{ ...any, compiled }], [JUMP.rule])
    const [theirs] = await client.ruleCounters({ ...PLACE, chain: 'OURS' })
    expect(theirs?.compiled).not.toBe(compileRule(native, 'ip').compiled)
    const own = { ...PLACE, name: 'OURS', rules: [native], last: [] }
    expect(await sinceRead({ ...side(own) }, [])).toEqual([])
    const entry = { rule: native, owner: 'someone' }
    expect(await sinceRead(side(chain([], [])), [entry])).toEqual([])
  })

  it('finds the same operations as the diff from the last commit', async () => {
    const { settle, sinceRead } = world()
    const before = side(chain(['first'], ['last']), 'a', 'b', 'c')
    await settle(before)
    for (const after of [
      before,
      side(chain(['first'], ['last']), 'c', 'd'),
      { ...side(chain(['first'], ['last']), 'a'), own: [chain(['own'], [], 'OURS-OWN')] },
      side(chain(['other'], ['last']), 'a', 'b', 'c'),
      side(chain(['first'], ['last', 'more']), 'a', 'b'),
    ])
      expect(sinceCommit(before, after)).toEqual(await sinceRead(after, owned(after.entries)))
  })

  it('keeps the first of several equal jumps among the rules of others', async () => {
    const { client, texts, settle, write } = world()
    await write([], [returning('theirs'), JUMP.rule, returning('more'), JUMP.rule])
    const before = await client.ruleCounters({ ...PLACE, chain: 'PREROUTING' })
    expect(verbsOf(await settle(side(chain([], []))))).toEqual(['delete-rule'])
    expect((await texts()).PREROUTING).toEqual(['theirs', '-j OURS', 'more'])
    expect(await client.ruleCounters({ ...PLACE, chain: 'PREROUTING' })).toEqual(before.slice(0, 3))
  })

  it('makes a chain of ours anew that another program made a base chain', async () => {
    const { client, texts, settle } = world()
    const hook = { type: 'nat', hooknum: NF_INET_PRE_ROUTING, priority: -90 } as const
    await client.commit([
      { verb: 'add-table', ...PLACE, flags: 0, comment: undefined },
      { verb: 'add-chain', ...PLACE, chain: { name: 'OURS', hook, rules: [] } },
      { verb: 'add-rule', ...PLACE, chain: 'OURS', rule: compileRule(returning('theirs'), 'ip') },
      { verb: 'add-chain', ...PLACE, chain: { name: 'OURS-OLD', hook, rules: [] } },
    ])
    const wanted = side(chain([], ['last']), 'a')
    await settle(wanted)
    expect(await texts()).toEqual({ OURS: ['a', 'last'], PREROUTING: ['-j OURS'] })
    expect(await settle(wanted)).toEqual([])
  })

  it('leaves nothing of ours but base chains when nothing is wanted', async () => {
    const { observe, texts, commit, settle } = world()
    await settle(side(chain(['first'], ['last']), 'a'))
    const staying = { ...JUMP, removed: false }
    const kept = removalOf(await observe(), { isOurs, jumps: [staying] }, CODEC)
    expect(kept).toEqual([])
    await commit(removalOf(await observe(), { isOurs, jumps: [JUMP] }, CODEC))
    expect(await texts()).toEqual({ PREROUTING: [] })
    expect(removalOf(await observe(), { isOurs, jumps: [JUMP] }, CODEC)).toEqual([])
  })
})

function textsOf({ rule }: OwnedEntry): string {
  return textOf(compileRule(rule, 'ip'))
}

describe('the diff from the last commit', () => {
  it('does not touch a list whose entries are the same', () => {
    const before = side(chain(['first'], ['last']), 'a', 'b')
    const after = { ...before, own: [chain(['own'], [], 'OURS-OWN')] }
    expect(verbsOf(sinceCommit(before, after))).toEqual(['add-chain', 'add-rule'])
    expect(verbsOf(sinceCommit(after, before))).toEqual(['flush-chain', 'delete-chain'])
  })

  it('inserts a new jump, and lets one stay that is not wanted any more', () => {
    const list = chain([], [])
    const more: XtJump = { ...JUMP, chain: 'OUTPUT' }
    const [some, all] = [fixedRules([list], [JUMP]), fixedRules([list], [JUMP, more])]
    const added = sinceCommit({ fixed: some, entries: [] }, { fixed: all, entries: [] })
    expect(verbsOf(added)).toEqual(['add-chain', 'insert-rule'])
    expect(sinceCommit({ fixed: all, entries: [] }, { fixed: some, entries: [] })).toEqual([])
  })

  it('names the chain of entries that have none', () => {
    const none = fixedRules([], [])
    expect(() => sinceCommit({ fixed: none, entries: [] }, { fixed: none, entries: ['a'] })).toThrow(
      'ip nat OURS: entries in a chain that does not exist',
    )
  })
})

describe('a commit', () => {
  it('names the rule that the kernel rejects', async () => {
    const { send, settle } = world()
    await settle(side(chain([], [])))
    const rule: XtRule = { matches: [{ kind: 'nfacct', name: 'none' }], target: { kind: 'RETURN' } }
    const operation = { ...PLACE, verb: 'add-rule', chain: 'OURS', rule, owner: 'someone' } as const
    const { outcome, failures } = await send([operation])
    expect(outcome).toBe('refused')
    expect(failures.map(({ error }) => error.message)).toEqual([
      expect.stringMatching(/^add rule ip nat OURS: ENOENT .*: -m nfacct --nfacct-name\s+none -j RETURN$/),
    ])
    expect(failures[0]?.operation).toBe(operation)
  })

  it('names every rule that cannot be encoded, and compiles none again after a lost socket', async () => {
    const addition = (text: string) =>
      ({ ...PLACE, verb: 'add-rule', chain: 'OURS', rule: returning(text), owner: text }) as const
    const operations = ['a', 'b', 'c', 'd'].map(addition)
    let [compiled, broken] = [0, false]
    const codec: RuleCodec = {
      compile(rule, family) {
        compiled++
        if ([operations[1]?.rule, operations[3]?.rule].includes(rule)) throw unencodable('a long rule')
        return compileRule(rule, family)
      },
    }
    const client = createNftClient({ transport: new FakeKernel().open(), clock: systemClock })
    const commit: typeof client.commit = (transaction, options) =>
      broken && transaction.length > 0
        ? Promise.reject(new Error('EBADF'))
        : client.commit(transaction, options)
    const slicing = { sliceMs: 5, nowMs: () => 0, breathe: () => Promise.resolve() }
    const options = {
      client: { commit, rule: client.rule.bind(client) },
      codec,
      slicing,
      generation: undefined,
    }
    const { outcome, failures } = await commitScope(operations, options)
    expect([outcome, failures.map(({ operation }) => operation?.owner)]).toEqual(['refused', ['b', 'd']])
    compiled = 0
    broken = true
    await expect(commitScope(operations, options)).rejects.toThrow('EBADF')
    expect(compiled).toBe(0)
    await client.close()
  })

  it('deletes no rule of another program that got the handle of ours in a new table', async () => {
    const { client, observe, texts, send, settle, write } = world()
    await settle(side(chain([], [])))
    const removal = removalOf(await observe(), { isOurs, jumps: [JUMP] }, CODEC)
    const generation = client.generation()
    await client.commit([{ ...PLACE, verb: 'delete-table' }])
    await write([], [returning('theirs')])
    const [theirs] = await client.ruleCounters({ ...PLACE, chain: 'PREROUTING' })
    expect(removal.some(each => each.verb === 'delete-rule' && each.rule.handle === theirs?.handle)).toBe(
      true,
    )
    for (const asked of [undefined, generation])
      expect(await send(removal, asked)).toMatchObject({ outcome: 'stale', messages: 0 })
    expect((await texts()).PREROUTING).toEqual(['theirs'])
  })
})
