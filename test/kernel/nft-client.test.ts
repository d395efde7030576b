import { execFileSync } from 'node:child_process'
import { afterEach, beforeEach, expect, it } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { u32host } from '../../src/base/octets.ts'
import { createNftClient, type NftClient } from '../../src/kernel/nft/client.ts'
import type { NftSet, Table } from '../../src/kernel/nft/state.ts'
import type { Operation, Transaction } from '../../src/kernel/nft/transaction.ts'
import { NETLINK_NETFILTER } from '../../src/netlink/constants.ts'
import { openNetlink } from '../../src/netlink/native.ts'
import { comparable, creationOf, skeleton } from '../support/nft-skeleton.ts'
import { columns } from '../support/owned.ts'

const TABLES = [
  { family: 'ip', name: 'skeleton' },
  { family: 'ip6', name: 'skeleton' },
] as const

let client: NftClient

beforeEach(() => {
  execFileSync('nft', ['flush', 'ruleset'])
  client = createNftClient({ transport: openNetlink({ protocol: NETLINK_NETFILTER }), clock: systemClock })
})

afterEach(() => client.close())

const target = { family: 'ip', table: 'skeleton' } as const

function setOf(table: Table, name: string): NftSet {
  const set = table.sets.get(name)
  if (set === undefined) throw new Error(`no set ${name}`)
  return set
}

function addEndpoints(table: Table, slots: readonly number[], data = '\x0a\0\0\x01\x1f\x90\0\0'): Operation {
  const set = setOf(table, 'endpoints')
  const elements = slots.map(slot => ({
    element: { set: set.name, key: u32host(0x8000_0000) + u32host(slot), data, comment: '' },
    group: `ns1/slot-${slot}`,
  }))
  return { ...target, verb: 'add-elements', set, ...columns(elements) }
}

async function create(...tables: readonly Table[]): Promise<void> {
  const { outcome, failures } = await client.commit(tables.flatMap(creationOf))
  expect(failures.map(({ error }) => error.message)).toEqual([])
  expect(outcome).toBe('committed')
}

it('gives back structurally what it committed, for both families, and nft prints it', async () => {
  const tables = [skeleton('ip', 7), skeleton('ip6', 7)]
  await create(...tables)
  const { ruleset, generation } = await client.list(TABLES)
  expect(ruleset.tables.map(comparable)).toEqual(tables.map(comparable))
  expect(generation).toBe(client.generation())
  for (const format of [[], ['-j']]) {
    const text = execFileSync('nft', [...format, 'list', 'ruleset'], { encoding: 'utf8' })
    expect(text).toContain('ns1/service-0:http')
    expect(text).not.toContain('invalid type')
  }
})

it('sends twenty thousand elements from the thread pool and lists them again', async () => {
  const table = skeleton('ip', 18_000)
  const { failures, ...result } = await client.commit(creationOf(table))
  expect(failures.map(({ error }) => error.message)).toEqual([])
  expect(result).toMatchObject({ outcome: 'committed', foreign: false })
  expect(result.messages).toBeLessThan(50)
  const { ruleset } = await client.list(TABLES)
  expect(ruleset.tables.map(comparable)).toEqual([comparable(table)])
})

it('leaves out tables that do not exist', async () => {
  expect((await client.list(TABLES)).ruleset.tables).toEqual([])
})

it('names the one element the kernel refuses, and commits nothing of the batch', async () => {
  const table = skeleton('ip')
  await create(table)
  const before = client.generation()
  const clash = addEndpoints(table, [7], '\x0a\0\0\x02\x1f\x90\0\0')
  await client.commit([addEndpoints(table, [7])])
  const result = await client.commit([addEndpoints(table, [5, 6]), clash, addEndpoints(table, [8])])
  expect(result).toMatchObject({ outcome: 'refused', generation: before + 1, foreign: false })
  expect(result.failures).toHaveLength(1)
  expect(result.failures[0]?.operation).toBe(clash)
  expect(result.failures[0]?.elements.map(({ group }) => group)).toEqual(['ns1/slot-7'])
  expect(result.failures[0]?.error.message).toBe(
    'add element ip skeleton endpoints (ns1/slot-7): EEXIST (File exists)',
  )
})

it('reports every operation that fails, each with its own error', async () => {
  await create(skeleton('ip'))
  const result = await client.commit([
    { ...target, verb: 'delete-chain', chain: 'absent' },
    { ...target, verb: 'add-rule', chain: 'gone', rule: { expressions: [{ kind: 'counter' }], comment: '' } },
    { ...target, verb: 'delete-set', set: 'frontends' },
  ])
  expect(result.failures.map(({ error }) => error.message)).toEqual([
    'delete chain ip skeleton absent: ENOENT (No such file or directory)',
    'add rule ip skeleton gone: ENOENT (No such file or directory)',
    'delete set ip skeleton frontends: EBUSY (Device or resource busy)',
  ])
})

it('is stale, and changes nothing, when the kernel has moved on from the generation asked for', async () => {
  const table = skeleton('ip')
  await create(table)
  const generation = client.generation()
  execFileSync('nft', ['add', 'table', 'ip', 'foreign'])
  const result = await client.commit([addEndpoints(table, [7])], { generation })
  expect(result).toMatchObject({ outcome: 'stale', foreign: true, failures: [], generation: generation + 1 })
  expect(await client.commit([addEndpoints(table, [7])], { generation: generation + 1 })).toMatchObject({
    outcome: 'committed',
    foreign: false,
  })
})

it('cannot tell whether a batch that changed nothing was committed', async () => {
  const table = skeleton('ip')
  await create(table)
  await client.commit([addEndpoints(table, [7])])
  expect(await client.commit([addEndpoints(table, [7])])).toMatchObject({ outcome: 'unknown', failures: [] })
})

it('sends nothing for an empty transaction', async () => {
  expect(await client.commit([])).toMatchObject({ outcome: 'committed', messages: 0, bytes: 0 })
})

it('replaces an element by deleting and adding its key in one batch', async () => {
  const table = skeleton('ip')
  await create(table)
  const [added] = [addEndpoints(table, [7])]
  if (added?.verb !== 'add-elements') throw new Error('unreachable')
  await client.commit([added])
  const replaced = addEndpoints(table, [7], '\x0a\0\0\x09\x1f\x90\0\0')
  const result = await client.commit([{ ...added, verb: 'delete-elements' }, replaced])
  expect(result).toMatchObject({ outcome: 'committed', failures: [] })
})

it('deletes elements of verdict maps by their key alone', async () => {
  const table = skeleton('ip')
  await create(table)
  const set = setOf(table, 'dispatch')
  const elements = [...table.elements.values()]
    .flat()
    .filter(element => element.set === 'dispatch')
    .map(element => ({ element, group: '' }))
  const removal: Transaction = [{ ...target, verb: 'delete-elements', set, ...columns(elements) }]
  expect(await client.commit(removal)).toMatchObject({ outcome: 'committed', failures: [] })
})

it('restores entries of an affinity map with the time they had left', async () => {
  const table = skeleton('ip')
  await create(table)
  const set = setOf(table, 'affinity')
  const element = (expiresMs: number) => ({
    element: {
      set: set.name,
      key: u32host(1) + u32host(expiresMs),
      data: u32host(9),
      comment: '',
      expiresMs,
    },
    group: '',
  })
  const elements = [element(60_000), element(20_000_000)]
  expect(await client.commit([{ ...target, verb: 'add-elements', set, ...columns(elements) }])).toMatchObject(
    {
      outcome: 'committed',
      failures: [],
    },
  )
  const { ruleset } = await client.list(TABLES)
  const restored = ruleset.tables[0]?.elements.get('affinity') ?? []
  expect(restored).toHaveLength(2)
  for (const { key, expiresMs = 0 } of restored) {
    const wanted = elements.find(({ element }) => element.key === key)?.element.expiresMs ?? 0
    expect(expiresMs).toBeLessThanOrEqual(wanted)
    expect(expiresMs).toBeGreaterThan(wanted - 10_000)
  }
})

it('empties and removes chains, sets and tables', async () => {
  const table = skeleton('ip')
  await create(table)
  const chains = [...table.chains.keys()]
  const result = await client.commit([
    { ...target, verb: 'delete-elements', set: setOf(table, 'dispatch'), ...dispatchOf(table) },
    ...chains.map(chain => ({ ...target, verb: 'flush-chain', chain }) as const),
    ...chains.map(chain => ({ ...target, verb: 'delete-chain', chain }) as const),
    ...[...table.sets.keys()].map(set => ({ ...target, verb: 'delete-set', set }) as const),
  ])
  expect(result).toMatchObject({ outcome: 'committed', failures: [] })
  expect((await client.list(TABLES)).ruleset.tables[0]).toMatchObject({ chains: new Map(), sets: new Map() })
  expect(await client.commit([{ ...target, verb: 'delete-table' }])).toMatchObject({ outcome: 'committed' })
  expect((await client.list(TABLES)).ruleset.tables).toEqual([])
})

function dispatchOf(table: Table) {
  const elements = [...table.elements.values()].flat().filter(element => element.set === 'dispatch')
  return columns(elements.map(element => ({ element, group: '' })))
}

it('keeps what it does not know of a foreign rule, so that a comparison sees it', async () => {
  await create(skeleton('ip'))
  execFileSync('nft', [
    'add',
    'rule',
    'ip',
    'skeleton',
    'services',
    'quota',
    'over',
    '10',
    'mbytes',
    'notrack',
    'accept',
  ])
  const { ruleset } = await client.list(TABLES)
  const rule = ruleset.tables[0]?.chains.get('services')?.rules.at(-1)
  expect(rule?.expressions.map(({ kind }) => kind)).toEqual(['unknown', 'unknown', 'verdict'])
  expect(rule?.expressions[0]).toMatchObject({ kind: 'unknown', name: 'quota' })
})
