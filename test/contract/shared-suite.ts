import { describe, expect, type TestAPI, test } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import type { Octets } from '../../src/base/octets.ts'
import type { NftClient } from '../../src/kernel/nft/client.ts'
import { readCompiled } from '../../src/kernel/nft/decode.ts'
import { type Touched, watchForeignCommits } from '../../src/kernel/nft/monitor.ts'
import type { CompiledRule, Expression, Observed } from '../../src/kernel/nft/state.ts'
import type { Operation } from '../../src/kernel/nft/transaction.ts'
import { compiledOf } from '../support/compiled.ts'
import { clientOf, lent, type TargetFactory, type Tools } from './target.ts'

/** Tables that others use as well: rules as bytes, by handle, and what becomes of them when others write. */
export function sharedSuite(factory: TargetFactory): void {
  const shared = test.extend<Shared>({
    target: ({ task: _ }, use) => use(factory()),
    client: ({ target }, use) => lent(clientOf(target), use),
    other: ({ target }, use) => lent(clientOf(target), use),
  })

  describe('rules', () => {
    ofRules(shared)
    ofCounters(shared)
  })
  describe('handles', () => {
    ofLifetimes(shared)
  })
  describe('others', () => {
    ofOthers(shared)
    ofChains(shared)
  })
  describe('listeners', () => ofListeners(shared))
}

interface Shared extends Tools {
  readonly other: NftClient
}

const NAT = { family: 'ip', table: 'nat' } as const
const PREROUTING = { type: 'nat', hooknum: 0, priority: -100 } as const
const VERDICT_JUMP = -3

function comment(text: string): Expression {
  return { kind: 'match', name: 'comment', revision: 0, info: text.padEnd(256, '\0') }
}

function rule(...expressions: readonly Expression[]): CompiledRule {
  return { compiled: compiledOf(expressions), protocol: 0, protocolInverted: false }
}

function named(text: string): CompiledRule {
  return rule(comment(text), { kind: 'counter' })
}

function jumpTo(chain: string): CompiledRule {
  return rule({ kind: 'counter' }, { kind: 'verdict', verdict: { code: VERDICT_JUMP, chain } })
}

/** As kube-proxy writes them: every kind of expression that rules of iptables are made of. */
const ALL_KINDS: CompiledRule = {
  compiled: compiledOf([
    { kind: 'meta', key: 16, dreg: 0 },
    { kind: 'cmp', op: 'eq', sreg: 0, data: '\x06' },
    { kind: 'payload', base: 1, offset: 12, length: 3, dreg: 0 },
    { kind: 'cmp', op: 'neq', sreg: 0, data: '\x0a\x00\x01' },
    { kind: 'meta', key: 3, dreg: 0 },
    { kind: 'bitwise', sreg: 0, dreg: 0, mask: '\0\x40\0\0', xor: '\0\0\0\0' },
    { kind: 'cmp', op: 'eq', sreg: 0, data: '\0\x40\0\0' },
    comment('ns/name:http'),
    { kind: 'match', name: 'tcp', revision: 0, info: '\0\0\xff\xff\0\0\xff\xff'.padEnd(16, '\0') },
    { kind: 'counter' },
    {
      kind: 'target',
      name: 'DNAT',
      revision: 2,
      info: `\x03\0\0\0\x0a\0\0\x01${'\0'.repeat(12)}\x0a\0\0\x01${'\0'.repeat(12)}\x1f\x90\x1f\x90`.padEnd(
        48,
        '\0',
      ),
    },
  ]),
  protocol: 6,
  protocolInverted: false,
}

function add(chain: string, rule: CompiledRule): Operation {
  return { ...NAT, verb: 'add-rule', chain, rule }
}

function insert(chain: string, rule: CompiledRule): Operation {
  return { ...NAT, verb: 'insert-rule', chain, rule }
}

function remove(chain: string, handle: bigint): Operation {
  return { ...NAT, verb: 'delete-rule', chain, handle }
}

const TABLE: readonly Operation[] = [
  { ...NAT, verb: 'add-table', flags: 0, comment: undefined },
  { ...NAT, verb: 'add-chain', chain: { name: 'PREROUTING', hook: PREROUTING, rules: [] } },
  { ...NAT, verb: 'add-chain', chain: { name: 'OURS', hook: undefined, rules: [] } },
]

async function committed(client: NftClient, ...operations: readonly Operation[]) {
  const result = await client.commit(operations)
  expect(result.failures.map(({ error }) => error.message)).toEqual([])
  expect(result.outcome).toBe('committed')
  return result
}

/** Comments of a chain's rules, in order; jumps by their target. */
function words(observed: Observed, chain: string): readonly string[] {
  const rules = observed.get('ip nat')?.chains.get(chain)?.rules ?? []
  return rules.map(({ compiled }) => wordOf(compiled))
}

function wordOf(compiled: Octets): string {
  const { expressions } = readCompiled({ compiled, protocol: 0, protocolInverted: false })
  return expressions
    .map(each => {
      if (each.kind === 'match') return each.info.replaceAll('\0', '')
      return each.kind === 'verdict' ? `to ${each.verdict.chain}` : ''
    })
    .join('')
}

async function listed(client: NftClient): Promise<Observed> {
  return (await client.listChains([NAT])).observed
}

async function handlesOf(client: NftClient, chain = 'OURS'): Promise<readonly bigint[]> {
  return (
    (await listed(client))
      .get('ip nat')
      ?.chains.get(chain)
      ?.rules.map(({ handle }) => handle) ?? []
  )
}

function ofRules(test: TestAPI<Shared>): void {
  test('are read back as the bytes that were written, in whole and one by one', async ({ client }) => {
    await committed(client, ...TABLE, add('OURS', ALL_KINDS), add('OURS', named('b')))
    const { observed, unsettled, generation } = await client.listChains([NAT])
    expect(unsettled).toBe(false)
    expect(generation).toBe(client.generation())
    const chains = observed.get('ip nat')?.chains
    expect([...(chains?.keys() ?? [])].sort()).toEqual(['OURS', 'PREROUTING'])
    expect(chains?.get('PREROUTING')?.hook).toEqual(PREROUTING)
    const rules = chains?.get('OURS')?.rules ?? []
    expect(rules.map(({ compiled }) => compiled)).toEqual([ALL_KINDS.compiled, named('b').compiled])
    for (const { handle, compiled } of rules)
      expect(client.rule({ ...NAT, chain: 'OURS', handle })).toBe(compiled)
  })

  test('of other chains are left out, and tables that do not exist', async ({ client }) => {
    await committed(client, ...TABLE, add('OURS', named('a')), add('PREROUTING', named('b')))
    const places = [
      { ...NAT, chains: (name: string) => name === 'OURS' },
      { family: 'ip6', table: 'nat' } as const,
      { family: 'ip', table: 'mangle' } as const,
    ]
    const { observed } = await client.listChains(places)
    expect([...observed.keys()]).toEqual(['ip nat'])
    expect([...(observed.get('ip nat')?.chains.keys() ?? [])]).toEqual(['OURS'])
    expect(words(observed, 'OURS')).toEqual(['a'])
  })

  test('are found in few chains of a long table, and in many', async ({ client }) => {
    const chains = Array.from({ length: 300 }, (_, i) => `C${i}`)
    const made = chains.map((name): Operation => {
      return { ...NAT, verb: 'add-chain', chain: { name, hook: undefined, rules: [] } }
    })
    await committed(client, ...TABLE, ...made)
    await committed(client, ...chains.flatMap(name => [add(name, named(name)), add(name, named('x'))]))
    for (const wanted of [(name: string) => name === 'C7', () => true]) {
      const { observed } = await client.listChains([{ ...NAT, chains: wanted }])
      const found = [...(observed.get('ip nat')?.chains.values() ?? [])].filter(({ name }) => name[0] === 'C')
      expect(found).toHaveLength(wanted('') ? 300 : 1)
      for (const { name } of found) expect(words(observed, name)).toEqual([name, 'x'])
    }
  })
}

function ofCounters(test: TestAPI<Shared>): void {
  test('are counted one by one, and none of a chain that is not there', async ({ client }) => {
    await committed(client, ...TABLE, add('OURS', named('a')), add('OURS', rule(comment('b'))))
    const rules = await client.ruleCounters({ ...NAT, chain: 'OURS' })
    expect(rules.map(({ compiled, packets }) => [wordOf(compiled), packets])).toEqual([
      ['a', 0n],
      ['b', 0n],
    ])
    expect(await client.ruleCounters({ ...NAT, chain: 'NONE' })).toEqual([])
  })

  test('have their counters at zero, whatever they counted', async ({ client }) => {
    // The kernel goes on from what it is given.
    const counter = compiledOf([{ kind: 'counter' }])
    const counted = `${counter.slice(0, -20)}${u64(77)}${counter.slice(-12, -8)}${u64(5)}`
    await committed(client, ...TABLE, add('OURS', { ...named(''), compiled: counted }))
    const [first] = await client.ruleCounters({ ...NAT, chain: 'OURS' })
    expect(first).toMatchObject({ packets: 5n, compiled: counter })
    expect((await listed(client)).get('ip nat')?.chains.get('OURS')?.rules[0]?.compiled).toBe(counter)
    expect(client.rule({ ...NAT, chain: 'OURS', handle: first?.handle ?? 0n })).toBe(counter)
  })
}

function u64(value: number): Octets {
  return `${'\0'.repeat(7)}${String.fromCharCode(value)}`
}

function ofLifetimes(test: TestAPI<Shared>): void {
  test('of a refused batch do not exist', async ({ client }) => {
    await committed(client, ...TABLE, add('OURS', named('a')))
    const result = await client.commit([insert('OURS', named('b')), remove('OURS', 9_999n)])
    expect(result).toMatchObject({ outcome: 'refused', failures: [{ code: 'ENOENT' }] })
    expect(result.failures[0]?.operation.verb).toBe('delete-rule')
    expect(words(await listed(client), 'OURS')).toEqual(['a'])
  })

  test('lead to one rule, and to none once it is gone', async ({ client }) => {
    await committed(
      client,
      ...TABLE,
      add('OURS', named('a')),
      add('OURS', named('b')),
      add('OURS', named('c')),
    )
    const [, b = 0n] = await handlesOf(client)
    await committed(client, remove('OURS', b))
    expect(words(await listed(client), 'OURS')).toEqual(['a', 'c'])
    expect(client.rule({ ...NAT, chain: 'OURS', handle: b })).toBeUndefined()
    expect(client.rule({ ...NAT, chain: 'NONE', handle: b })).toBeUndefined()
    expect(client.rule({ ...NAT, table: 'none', chain: 'OURS', handle: b })).toBeUndefined()
    const again = await client.commit([remove('OURS', b)])
    expect(again).toMatchObject({ outcome: 'refused', failures: [{ code: 'ENOENT' }] })
  })

  test('begin anew in a table that was made again, and so may be another rule’s', async ({
    client,
    other,
  }) => {
    await committed(client, ...TABLE, add('OURS', named('a')))
    const [before = 0n] = await handlesOf(client)
    await committed(other, { ...NAT, verb: 'delete-table' })
    await committed(other, ...TABLE, add('OURS', named('foreign')))
    expect(await handlesOf(client)).toEqual([before])
    expect(wordOf(client.rule({ ...NAT, chain: 'OURS', handle: before }) ?? '')).toBe('foreign')
  })
}

function ofOthers(test: TestAPI<Shared>): void {
  test('keep their rules, in their order, behind what is inserted', async ({ client, other }) => {
    await committed(other, ...TABLE, add('PREROUTING', named('cni')), add('PREROUTING', named('kubelet')))
    await committed(client, insert('PREROUTING', jumpTo('OURS')))
    expect(words(await listed(client), 'PREROUTING')).toEqual(['to OURS', 'cni', 'kubelet'])
  })

  test('empty a chain, or take everything away', async ({ client, other }) => {
    await committed(client, ...TABLE, add('OURS', named('a')), add('PREROUTING', jumpTo('OURS')))
    await committed(other, { ...NAT, verb: 'flush-chain', chain: 'PREROUTING' })
    expect(words(await listed(client), 'PREROUTING')).toEqual([])
    expect(words(await listed(client), 'OURS')).toEqual(['a'])
    await committed(other, { ...NAT, verb: 'delete-table' })
    expect(await listed(client)).toEqual(new Map())
  })
}

function ofChains(test: TestAPI<Shared>): void {
  test('see a chain go in the batch that deletes the rule which led to it', async ({ client }) => {
    await committed(client, ...TABLE, add('OURS', named('a')), add('PREROUTING', jumpTo('OURS')))
    const [handle = 0n] = await handlesOf(client, 'PREROUTING')
    await committed(client, remove('PREROUTING', handle), ...gone('OURS'))
    expect([...((await listed(client)).get('ip nat')?.chains.keys() ?? [])]).toEqual(['PREROUTING'])
  })

  test('see chains go in the batch that empties the chain which led to them, and fills it again', async ({
    client,
  }) => {
    const end: Operation = { ...NAT, verb: 'add-chain', chain: { name: 'END', hook: undefined, rules: [] } }
    await committed(client, ...TABLE, end, add('END', named('a')), add('OURS', jumpTo('END')))
    const refill: readonly Operation[] = [
      { ...NAT, verb: 'flush-chain', chain: 'OURS' },
      add('OURS', named('b')),
    ]
    await committed(client, ...refill, ...gone('END'))
    expect([...((await listed(client)).get('ip nat')?.chains.keys() ?? [])].sort()).toEqual([
      'OURS',
      'PREROUTING',
    ])
    expect(words(await listed(client), 'OURS')).toEqual(['b'])
  })

  test('see a chain go with the chain that led to it, in any number', async ({ client }) => {
    const end: Operation = { ...NAT, verb: 'add-chain', chain: { name: 'END', hook: undefined, rules: [] } }
    const begin = [...TABLE, end, add('END', named('a')), add('OURS', jumpTo('END'))]
    await committed(client, ...begin, add('PREROUTING', jumpTo('OURS')))
    const [handle = 0n] = await handlesOf(client, 'PREROUTING')
    await committed(client, remove('PREROUTING', handle), ...gone('OURS'), ...gone('END'))
    expect([...((await listed(client)).get('ip nat')?.chains.keys() ?? [])]).toEqual(['PREROUTING'])
  })
}

function gone(chain: string): readonly Operation[] {
  return [
    { ...NAT, verb: 'flush-chain', chain },
    { ...NAT, verb: 'delete-chain', chain },
  ]
}

function ofListeners(test: TestAPI<Shared>): void {
  test('are told the chain of each rule, and where it leads, when it comes and when it goes', async ({
    target,
    client,
  }) => {
    await committed(client, ...TABLE, add('PREROUTING', named('cni')))
    const heard: string[] = []
    const ears = target.open()
    let commits = 0
    const watch = watchForeignCommits({
      transport: ears,
      ownPortIds: new Set(),
      onCommit: () => commits++,
      onOverrun: error => heard.push(error.message),
      concerns: touched => {
        heard.push(wordsOf(touched))
        return false
      },
    })
    await committed(client, insert('PREROUTING', jumpTo('OURS')))
    const [jump = 0n, cni = 0n] = await handlesOf(client, 'PREROUTING')
    await committed(client, remove('PREROUTING', jump))
    await committed(client, { ...NAT, verb: 'flush-chain', chain: 'PREROUTING' })
    await committed(client, { ...NAT, verb: 'delete-chain', chain: 'OURS' })
    for (let turn = 0; turn < 100 && commits < 4; turn++) await systemClock.breathe()
    watch.stop()
    await ears.close()
    expect(heard).toEqual([
      `ip nat PREROUTING ${jump} to OURS`,
      `ip nat PREROUTING ${jump} to OURS`,
      `ip nat PREROUTING ${cni}`,
      'ip nat OURS',
    ])
  })
}

function wordsOf({ family, table, chain, handle, targets }: Touched): string {
  const parts = [family, table, chain ?? '', handle === undefined ? '' : String(handle)]
  for (const target of targets()) parts.push('to', target)
  return parts.filter(part => part !== '').join(' ')
}
