import fc from 'fast-check'
import { expect, type TestAPI, test } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { IpsetClient } from '../../src/kernel/ipset/client.ts'
import { growthOf } from '../../src/kernel/ipset/grow.ts'
import {
  entryKey,
  entryText,
  type Ipset,
  type IpsetEntry,
  type IpsetOperation,
} from '../../src/kernel/ipset/state.ts'
import type { Transport } from '../../src/netlink/transport.ts'
import '../support/properties.ts'
import { ip } from '../support/addresses.ts'
import { add, anyFilledSet, manyEntries, setOf } from '../support/fake-ipset/arbitraries.ts'
import { runs } from '../support/runs.ts'
import { lent, type Versioned } from './target.ts'

/** A kernel, real or not, that has no sets. */
export interface IpsetTarget extends Versioned {
  open(): Transport
  /** Something that is no rule of ours refers to the set from now on. */
  refer(name: string): void
  /** A set of a type that is none of ours. */
  makeForeign(name: string): void
}

export type IpsetTargetFactory = () => IpsetTarget

interface Bench {
  readonly target: IpsetTarget
  readonly client: IpsetClient
}
type BenchTest = TestAPI<{ readonly bench: Bench }>

export function ipsetClientSuite(factory: IpsetTargetFactory): void {
  const benches = test.extend<{ readonly bench: Bench }>({
    async bench({ task: _ }, use) {
      const target = factory()
      const client = new IpsetClient({ transport: target.open(), clock: systemClock })
      await lent(client, () => use({ target, client }))
    },
  })

  reading(benches)
  entries(benches)
  entriesUnsent(benches)
  sets(benches)
  wrongNames(benches)
  references(benches)
  amounts(benches)
}

const A = setOf('KUBE-CLUSTER-IP', 'hash:ip,port')
const B = setOf('KUBE-EXTERNAL-IP', 'hash:ip,port')
const IPS = setOf('KUBE-IPVS-IPS', 'hash:ip')

function create(...made: readonly Ipset[]): IpsetOperation[] {
  return made.map(set => ({ verb: 'create', set }))
}

function ips(...texts: readonly string[]): IpsetEntry[] {
  return texts.map(text => ({ ip: ip(text) }))
}

async function done({ client }: Bench, ...operations: readonly IpsetOperation[]) {
  const result = await client.commit(operations)
  expect(result.failures.map(({ error }) => error.message)).toEqual([])
  expect(result.unknown).toBeUndefined()
  return result
}

async function textsOf({ client }: Bench, name: string): Promise<string[]> {
  const [listing] = await client.list([name])
  return (listing?.entries ?? []).map(entry => entryText(listing?.set ?? A, entry)).sort()
}

async function messagesOf({ client }: Bench, ...operations: readonly IpsetOperation[]): Promise<string[]> {
  const { failures, unknown } = await client.commit(operations)
  expect(unknown).toBeUndefined()
  return failures.map(({ error }) => error.message)
}

function reading(test: BenchTest): void {
  test('knows the revisions of the kernel', ({ bench: { client } }) => {
    expect(client.revision('hash:ip,port', 'IPv4')).toBeGreaterThanOrEqual(5)
    expect(client.revision('hash:ip,port,net', 'IPv6')).toBeGreaterThanOrEqual(7)
    expect(client.revision('bitmap:port', 'IPv4')).toBe(3)
  })

  test('finds nothing where there is nothing', async ({ bench: { client } }) => {
    expect(await client.headers()).toEqual({ headers: [], foreign: [] })
    expect(await client.list(['KUBE-CLUSTER-IP'])).toEqual([])
    expect([client.indexOf('KUBE-CLUSTER-IP'), client.nameOf(7)]).toEqual([undefined, undefined])
  })

  test('reads random sets as they were written', async ({ bench }) => {
    await fc.assert(
      fc.asyncProperty(anyFilledSet('S', 150), async filled => {
        await done(bench, ...create(filled.set), add(filled))
        const [listing] = await bench.client.list(['S'])
        expect(listing).toMatchObject({ set: filled.set, references: 0 })
        expect(sortedKeys(listing?.entries ?? [])).toEqual(sortedKeys(filled.entries))
        const { headers } = await bench.client.headers()
        expect(headers).toHaveLength(1)
        const { entries: _, ...header } = listing ?? expect.unreachable()
        expect(header.elements).toBe(filled.entries.length)
        expect(headers[0]).toEqual(header)
        await done(bench, { verb: 'destroy', name: 'S' })
      }),
      { numRuns: runs(60) },
    )
  })

  test('names what is not ours, and leaves it alone', async ({ bench }) => {
    bench.target.makeForeign('somebody-elses')
    await done(bench, ...create(IPS))
    const { headers, foreign } = await bench.client.headers()
    expect([headers.map(({ set }) => set.name), foreign]).toEqual([['KUBE-IPVS-IPS'], ['somebody-elses']])
    expect(await bench.client.list(['somebody-elses'])).toEqual([])
    expect(await messagesOf(bench, ...create({ ...IPS, name: 'somebody-elses' }))).toEqual([
      expect.stringMatching(
        /^create somebody-elses hash:ip: EEXIST \(File exists\): another set has this name: it is /,
      ),
    ])
  })
}

function sortedKeys(entries: readonly IpsetEntry[]): string[] {
  return entries.map(entry => entryKey('', entry)).sort()
}

function entries(test: BenchTest): void {
  test('adds what is there and deletes what is not without a word', async ({ bench }) => {
    const both = { set: IPS, entries: ips('10.0.0.1', '10.0.0.2') }
    await done(bench, ...create(IPS), add(both), add(both))
    expect(await textsOf(bench, IPS.name)).toEqual(['10.0.0.1', '10.0.0.2'])
    const remove = {
      ...add({ set: IPS, entries: ips('10.0.0.1', '10.9.9.9') }),
      verb: 'delete-entries',
    } as const
    await done(bench, remove, remove)
    expect(await textsOf(bench, IPS.name)).toEqual(['10.0.0.2'])
  })

  test('no entry suffers from another that the kernel refuses', async ({ bench }) => {
    const texts = Array.from({ length: 600 }, (_, i) => `10.0.${i >> 8}.${i & 255}`)
    const bad = [0, 3, 4, 250, 499, 500, 599]
    const all = ips(...texts.map((text, i) => (bad.includes(i) ? '0.0.0.0' : text)))
    const groups = texts.map((_, i) => `ns/service-${i}`)
    const result = await bench.client.commit([...create(IPS), add({ set: IPS, entries: all }, groups)])
    expect(result.unknown).toBeUndefined()
    expect(result.failures.map(({ code }) => code)).toEqual(bad.map(() => 'IPSET_ERR_HASH_ELEM'))
    expect(result.failures.flatMap(failure => failure.entries.map(({ group }) => group)).sort()).toEqual(
      bad.map(i => `ns/service-${i}`).sort(),
    )
    expect(result.failures[0]?.error.message).toBe(
      'add KUBE-IPVS-IPS 0.0.0.0 (ns/service-0): IPSET_ERR_HASH_ELEM (The address 0.0.0.0, or ::, cannot be in a set of this type)',
    )
    expect((await textsOf(bench, IPS.name)).length).toBe(600 - bad.length)
  })

  test('a set that is full says so for each entry that is left out, and for no other', async ({ bench }) => {
    const small = { ...A, maxElements: 100 }
    await done(bench, ...create(small), add({ set: small, entries: manyEntries(50) }))
    // Those that are there are at the end, behind those that do not fit.
    const offered = [...manyEntries(1000, 50), ...manyEntries(50)]
    const groups = offered.map((_, i) => `ns/${i}`)
    const result = await bench.client.commit([add({ set: small, entries: offered }, groups)])
    expect(new Set(result.failures.map(({ code }) => code))).toEqual(new Set(['IPSET_ERR_HASH_FULL']))
    const left = result.failures.flatMap(failure =>
      failure.entries.map(({ group }) => Number(group.slice(3))),
    )
    expect(left.sort((a, b) => a - b)).toEqual(Array.from({ length: 950 }, (_, i) => i + 50))
    expect(result.messages).toBeLessThan(1300)
  })
}

function entriesUnsent(test: BenchTest): void {
  test('entries for a set that is not there are refused all at once; deleting them is done already', async ({
    bench,
  }) => {
    const add3 = add({ set: A, entries: manyEntries(3) }, ['a/a', 'b/b', 'c/c'])
    const { failures, messages } = await bench.client.commit([add3, { ...add3, verb: 'delete-entries' }])
    expect(messages).toBe(2)
    expect(failures.map(({ error, entries }) => [error.message, entries.length])).toEqual([
      ['add KUBE-CLUSTER-IP (a/a, b/b, c/c): ENOENT (No such file or directory): there is no such set', 3],
    ])
  })
}

function sets(test: BenchTest): void {
  test('a set that is there is as good as a new one, whatever its size', async ({ bench }) => {
    await done(bench, ...create(A), add({ set: A, entries: manyEntries(2) }), ...create(A))
    await done(bench, ...create({ ...A, maxElements: 1 << 20, hashSize: 4096 }))
    expect((await bench.client.headers()).headers).toMatchObject([{ set: A, elements: 2 }])
  })

  test('a set of another type is not, and the error names it', async ({ bench }) => {
    await done(bench, ...create(A))
    const asOther = (changes: Partial<Ipset>) => messagesOf(bench, ...create({ ...A, ...changes }))
    expect(await asOther({ type: 'hash:ip' })).toEqual([
      'create KUBE-CLUSTER-IP hash:ip: EEXIST (File exists): another set has this name: it is hash:ip,port of IPv4, not hash:ip of IPv4',
    ])
    expect(await asOther({ family: 'IPv6' })).toEqual([
      'create KUBE-CLUSTER-IP hash:ip,port: EEXIST (File exists): another set has this name: it is hash:ip,port of IPv4, not hash:ip,port of IPv6',
    ])
  })

  test('swaps contents, and names keep their numbers', async ({ bench }) => {
    await done(bench, ...create(A, B), add({ set: A, entries: manyEntries(1) }))
    const before = [bench.client.indexOf(A.name), bench.client.indexOf(B.name)]
    expect(new Set(before).size).toBe(2)
    await done(bench, { verb: 'swap', name: A.name, with: B.name })
    expect([bench.client.indexOf(A.name), bench.client.indexOf(B.name)]).toEqual(before)
    expect(before.map(index => bench.client.nameOf(index ?? -1))).toEqual([A.name, B.name])
    expect([await textsOf(bench, A.name), await textsOf(bench, B.name)]).toEqual([[], ['10.0.0.0,tcp:80']])
  })
}

function wrongNames(test: BenchTest): void {
  test('says what is wrong with a swap', async ({ bench }) => {
    const swap = (name: string, other: string) => messagesOf(bench, { verb: 'swap', name, with: other })
    await done(bench, ...create(A, IPS))
    expect(await swap(A.name, IPS.name)).toEqual([
      'swap KUBE-CLUSTER-IP KUBE-IPVS-IPS: IPSET_ERR_TYPE_MISMATCH (The two sets are of different types)',
    ])
    expect(await swap(A.name, 'none')).toEqual([
      'swap KUBE-CLUSTER-IP none: IPSET_ERR_EXIST_SETNAME2 (There is no set with the second name)',
    ])
    expect(await swap('none', A.name)).toEqual([
      'swap none KUBE-CLUSTER-IP: ENOENT (No such file or directory): there is no such set',
    ])
  })

  test('destroys what is there and what is not, and nothing without a name', async ({ bench }) => {
    await done(bench, ...create(A, B), { verb: 'destroy', name: A.name }, { verb: 'destroy', name: A.name })
    expect((await bench.client.headers()).headers.map(({ set }) => set.name)).toEqual([B.name])
    // Without the attribute of the name, the kernel would destroy every set.
    await done(bench, { verb: 'destroy', name: '' })
    expect((await bench.client.headers()).headers).toHaveLength(1)
    await done(bench, ...create({ ...A, name: 'x'.repeat(31) }))
  })
}

function references(test: BenchTest): void {
  test('a set that is referred to is not destroyed, and the error says so', async ({ bench }) => {
    await done(bench, ...create(A))
    bench.target.refer(A.name)
    expect(await messagesOf(bench, { verb: 'destroy', name: A.name })).toEqual([
      'destroy KUBE-CLUSTER-IP: IPSET_ERR_BUSY (The set is in use: a rule or a set refers to it, or another program lists it)',
    ])
    expect((await bench.client.headers()).headers[0]).toMatchObject({ references: 1 })
  })

  test('a set that is referred to grows by build-and-swap, and what a crash left of another try does not matter', async ({
    bench,
  }) => {
    const small = { ...A, maxElements: 8 }
    await done(bench, ...create(small), add({ set: small, entries: manyEntries(8) }))
    bench.target.refer(A.name)
    const index = bench.client.indexOf(A.name)
    const all = manyEntries(3000)
    const growth = growthOf({ set: small, entries: all, groups: [] })
    // The leftover: of another size, and with entries that nobody wants.
    const leftover = { ...small, name: `${A.name}-tmp` }
    await done(bench, ...create(leftover), add({ set: leftover, entries: manyEntries(5, 70_000) }))
    await done(bench, ...growth.build)
    expect(await textsOf(bench, A.name)).toHaveLength(8)
    await done(bench, ...growth.replace)
    const [listing] = await bench.client.list([A.name])
    expect(listing).toMatchObject({ set: growth.set, elements: 3000, references: 1 })
    expect(sortedKeys(listing?.entries ?? [])).toEqual(sortedKeys(all))
    expect(bench.client.indexOf(A.name)).toBe(index)
    expect((await bench.client.headers()).headers).toHaveLength(1)
  })
}

function amounts(test: BenchTest): void {
  test('10,000 entries take at most 25 messages, one takes one, and a list of them comes whole', async ({
    bench,
  }) => {
    const large = { ...A, hashSize: 8192 }
    const all = manyEntries(10_000)
    await done(bench, ...create(large))
    const { messages, bytes } = await done(bench, add({ set: large, entries: all }))
    expect(messages).toBeLessThanOrEqual(25)
    expect(bytes).toBeLessThan(all.length * 64)
    const one = await done(bench, add({ set: large, entries: manyEntries(1, 20_000) }))
    expect(one.messages).toBe(1)
    const [listing] = await bench.client.list([A.name])
    expect(sortedKeys(listing?.entries ?? [])).toEqual(sortedKeys([...all, ...manyEntries(1, 20_000)]))
    const gone = await done(bench, { ...add({ set: large, entries: all }), verb: 'delete-entries' })
    expect(gone.messages).toBeLessThanOrEqual(25)
    expect((await bench.client.headers()).headers[0]).toMatchObject({ elements: 1 })
  })

  test('nothing to do takes no message', async ({ bench }) => {
    const result = await bench.client.commit([add({ set: A, entries: [] })])
    expect(result).toEqual({ unknown: undefined, failures: [], bytes: 0, messages: 0 })
  })
}
