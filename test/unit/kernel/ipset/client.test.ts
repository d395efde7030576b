import { describe, expect, it } from 'vitest'
import { systemClock } from '../../../../src/base/clock.ts'
import { IpsetClient, listIpsetNames, listRequest } from '../../../../src/kernel/ipset/client.ts'
import type { Ipset, IpsetOperation } from '../../../../src/kernel/ipset/state.ts'
import { Connection } from '../../../../src/netlink/connection.ts'
import { SystemError } from '../../../../src/netlink/transport.ts'
import { add, manyEntries, setOf } from '../../../support/fake-ipset/arbitraries.ts'
import { FakeIpsetKernel, type FakeIpsetOptions } from '../../../support/fake-ipset/kernel.ts'
import { TYPES } from '../../../support/fake-ipset/sets.ts'
import { FaultyTransport, type TransportFaults } from '../../../support/faulty-transport.ts'
import { IS_QUICK } from '../../../support/runs.ts'
import {
  attribute,
  datagram,
  errorMessage,
  message,
  ScriptedTransport,
  sequenceOf,
} from '../../../support/scripted-transport.ts'

const A = setOf('KUBE-CLUSTER-IP', 'hash:ip,port')

function create(set: Ipset): IpsetOperation {
  return { verb: 'create', set }
}

function start(options: FakeIpsetOptions = {}, faults: TransportFaults = {}) {
  const kernel = new FakeIpsetKernel(options)
  const transport = new FaultyTransport(kernel.open(), faults)
  const client = new IpsetClient({ transport, clock: systemClock })
  return { kernel, client }
}

function withRevisions(min: number, max: number) {
  return start({ types: { ...TYPES, 'hash:ip,port': { min, max, buckets: 6 } } })
}

it.each([
  ['the same', 0, 7, 7],
  ['older ones', 0, 1, 1],
  ['the oldest alone', 0, 0, 0],
  ['newer ones as well', 2, 12, 7],
])('F109: negotiates the revision with a kernel that has %s', async (_, min, max, shared) => {
  const { kernel, client } = withRevisions(min, max)
  expect(client.revision('hash:ip,port', 'IPv4')).toBe(shared)
  expect(await client.commit([create(A), add({ set: A, entries: manyEntries(3) })])).toMatchObject({
    failures: [],
  })
  expect(kernel.set(A.name)).toMatchObject({ revision: shared })
  const [listing] = await client.list([A.name])
  expect(listing).toMatchObject({ set: A, revision: shared, elements: 3 })
  expect(listing?.bucketSize).toBe(shared >= 6 ? 12 : undefined)
})

it('F109: says which revisions a kernel has, when it has newer ones alone', async () => {
  const { client } = withRevisions(9, 12)
  expect(client.revision('hash:ip,port', 'IPv4')).toBeUndefined()
  const { failures } = await client.commit([create(A)])
  expect(failures.map(({ error }) => error.message)).toEqual([
    'create KUBE-CLUSTER-IP hash:ip,port: IPSET_ERR_FIND_TYPE (The kernel has no such type of sets, or not this revision): the kernel has revisions 9 to 12, kprobe knows 0 to 7',
  ])
})

it('finds a type that comes later, and asks no more then', async () => {
  const { kernel, client } = start({ types: {} })
  expect(client.revision('hash:ip', 'IPv4')).toBeUndefined()
  const later = new IpsetClient({ transport: new FakeIpsetKernel().open(), clock: systemClock })
  expect([later.revision('hash:ip', 'IPv4'), later.revision('hash:ip', 'IPv4')]).toEqual([6, 6])
  expect(client.revision('hash:ip', 'IPv4')).toBeUndefined()
  expect(kernel.handled).toHaveLength(2)
})

it('is told once that it may not, and believes it of the whole datagram', async () => {
  const { kernel, client } = start()
  await client.commit([create(A)])
  const denied = start({ isPrivileged: false }).client
  const operations: IpsetOperation[] = ['X', 'Y'].map(name => ({ verb: 'destroy', name }))
  const result = await denied.commit(operations)
  expect(result.unknown).toBeUndefined()
  expect(result.failures.map(({ error }) => error.message)).toEqual([
    'destroy X: EPERM (Operation not permitted)',
    'destroy Y: EPERM (Operation not permitted)',
  ])
  expect(kernel.set(A.name)).toBeDefined()
})

it('does not destroy twice where the kernel minds', async () => {
  const { client } = start({ destroyIsStrict: true })
  expect(await client.commit([{ verb: 'destroy', name: 'none' }])).toMatchObject({
    failures: [],
    messages: 1,
  })
})

it('does not believe a datagram without an answer to its last message', async () => {
  const faults: TransportFaults = {}
  const { client } = start({}, faults)
  await client.commit([create(A)])
  faults.onReceive = () => undefined
  expect((await client.commit([add({ set: A, entries: manyEntries(1) })])).unknown).toBeDefined()
})

it('does not know what came of it when the kernel cannot be asked in between', async () => {
  const faults: TransportFaults = {}
  const { kernel, client } = start({}, faults)
  let sends = 0
  faults.onSend = datagram => {
    // The revisions of a type, a set with its entry, and the revisions of another type.
    if (++sends === 4) throw new SystemError('sendmsg', 12, 'ENOMEM')
    return datagram
  }
  const entry = add({ set: A, entries: manyEntries(1) })
  const result = await client.commit([create(A), entry, create(setOf('B', 'hash:ip'))])
  expect(result).toMatchObject({ unknown: { code: 'ENOMEM' }, messages: 2 })
  expect(kernel.set(A.name)?.elements.size).toBe(1)
  sends = 3
  await expect(client.commit([create(setOf('B', 'hash:ip'))])).rejects.toThrow('sendmsg: ENOMEM')
})

it('sends again what is behind an entry that was refused before anything that comes after it', async () => {
  const { kernel, client } = start()
  const B = { ...A, name: 'B' }
  await client.commit([create(A), create(B)])
  const entries = manyEntries(400).map((entry, i) => (i % 50 === 7 ? { ...entry, protocol: 0 } : entry))
  const remove = { ...add({ set: A, entries: manyEntries(400) }), verb: 'delete-entries' } as const
  const { failures } = await client.commit([
    add({ set: A, entries }),
    remove,
    { verb: 'swap', name: 'B', with: A.name },
  ])
  expect(failures.filter(({ operation }) => operation.verb === 'add-entries')).toHaveLength(8)
  expect(kernel.set('B')?.elements.size).toBe(0)
})

it('does not swap or destroy what somebody is listing, and says so', async () => {
  const { kernel, client } = start()
  await client.commit([create(A), create({ ...A, name: 'B' }), add({ set: A, entries: manyEntries(5000) })])
  const set = kernel.set(A.name) ?? expect.unreachable()
  set.listings++
  const { failures } = await client.commit([
    { verb: 'swap', name: A.name, with: 'B' },
    { verb: 'destroy', name: A.name },
  ])
  expect(failures.map(({ code }) => code)).toEqual(['EBUSY', 'IPSET_ERR_BUSY'])
})

it.skipIf(IS_QUICK)('spends messages by the change, not by what is there', async () => {
  const cost = async (there: number): Promise<readonly number[]> => {
    const { kernel, client } = start()
    const set = { ...A, maxElements: 1 << 17 }
    await client.commit([create(set), add({ set, entries: manyEntries(there) })])
    const [messages, datagrams] = [kernel.handled.length, kernel.datagrams]
    const result = await client.commit([
      add({ set, entries: manyEntries(2, 100_000) }),
      { ...add({ set, entries: manyEntries(1) }), verb: 'delete-entries' },
    ])
    return [kernel.handled.length - messages, kernel.datagrams - datagrams, result.messages, result.bytes]
  }
  const few = await cost(10)
  expect(await cost(20_000)).toEqual(few)
  expect(few.slice(0, 3)).toEqual([2, 2, 2])
})

it('keeps working on several commits at once', async () => {
  const { kernel, client } = start()
  const sets = ['X', 'Y', 'Z'].map(name => ({ ...A, name }))
  const commits = sets.map((set): Promise<unknown> => commitOne(client, set))
  expect(await Promise.all(commits)).toEqual(sets.map(() => expect.objectContaining({ failures: [] })))
  expect(sets.map(({ name }) => kernel.set(name)?.elements.size)).toEqual([3000, 3000, 3000])
})

function commitOne(client: IpsetClient, set: Ipset): Promise<unknown> {
  return client.commit([create(set), add({ set, entries: manyEntries(3000) })])
}

describe('the names of all sets', () => {
  const names = (answer: (sequence: number) => Uint8Array) => {
    const transport = new ScriptedTransport(sent => [answer(sequenceOf(sent))])
    return listIpsetNames(new Connection({ transport, clock: systemClock }))
  }

  it('are asked for alone', () => {
    const payload = `\0\0\0\0${attribute(1, '\x06')}${attribute(6, '\0\0\0\x02')}`
    const sent = message({ type: 0x607, flags: 0x301, sequence: 7, payload })
    expect(Buffer.from(listRequest(7))).toEqual(Buffer.from(datagram(sent)))
  })

  it('are none where the kernel has no ipsets, and no other error is hidden', async () => {
    const refused = (errno: number) => names(sequence => datagram(errorMessage(sequence, errno)))
    expect(await refused(22)).toEqual([])
    await expect(refused(1)).rejects.toThrow('EPERM')
  })

  it('are those that the kernel tells', async () => {
    const { kernel, client } = start()
    await client.commit([create(A), create({ ...A, name: 'mine' })])
    const connection = new Connection({ transport: kernel.open(), clock: systemClock })
    expect(await listIpsetNames(connection)).toEqual([A.name, 'mine'])
  })
})
