import { afterEach, beforeEach, expect, it } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { createNftClient } from '../../src/kernel/nft/client.ts'
import { IptablesPlane } from '../../src/modes/iptables/plane.ts'
import { DEFAULT_IPTABLES_OPTIONS } from '../../src/modes/iptables/settings.ts'
import { createNftablesPlane } from '../../src/modes/nftables/plane.ts'
import { DEFAULT_NFTABLES_OPTIONS } from '../../src/modes/nftables/settings.ts'
import { errnoNumber } from '../../src/netlink/errors.ts'
import { SystemError, type Transport } from '../../src/netlink/transport.ts'
import type { Dataplane, Plan } from '../../src/reconcile/dataplane.ts'
import { FakeKernel } from '../support/fake-kernel/kernel.ts'
import { FaultyTransport, isBatch, messagesIn, type TransportFaults } from '../support/faulty-transport.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { dual } from '../support/objects.ts'
import { columns } from '../support/owned.ts'
import { PlaneRig } from '../support/plane-rig.ts'
import { Rig } from '../support/rig.ts'
import { differences, frontendNames, listRuleset, nft, openNetfilter } from './kernel.ts'
import { clusterIp, nameOf, service, services } from './objects.ts'

const rigs: Rig[] = []

beforeEach(() => freshNetns())

afterEach(async () => {
  await Promise.all(rigs.splice(0).map(rig => rig.close()))
})

/** A rig on the kernel of this machine, or on another. */
function rigWith(faults: TransportFaults, inner: Transport = openNetfilter()): Rig {
  const rig = new Rig({ transport: new FaultyTransport(inner, faults) })
  rigs.push(rig)
  return rig
}

/** Does something once, just before the next batch is sent. */
function beforeNextBatch(faults: TransportFaults, run: () => void): void {
  faults.onSend = datagram => {
    if (isBatch(datagram)) {
      faults.onSend = undefined
      run()
    }
    return datagram
  }
}

const BATCH_END_BYTES = 20
const NFNL_MSG_BATCH_END = 0x11

it.each([
  ['the kernel', () => openNetfilter()],
  ['the kernel in memory', () => new FakeKernel().open()],
])('F47: a batch that %s sees without its end is not believed, and sent again', async (_, open) => {
  const faults: TransportFaults = {}
  const rig = rigWith(faults, open())
  await rig.sync(services(3))
  const before = rig.client.generation()
  let cut = 0
  faults.onSend = datagram => {
    if (!isBatch(datagram) || cut === 2) return datagram
    cut++
    expect(messagesIn(datagram).at(-1)?.type).toBe(NFNL_MSG_BATCH_END)
    return datagram.slice(0, -BATCH_END_BYTES)
  }
  rig.offer(services(4))
  await rig.until(() => cut === 1)
  expect(rig.client.generation()).toBe(before)
  await rig.synced()
  expect(rig.of('failed').map(({ error }) => error.message)).toEqual([
    'the outcome of a commit is unknown',
    'the outcome of a commit is unknown',
  ])
  expect(rig.client.generation()).toBe(before + 1)
})

it.each([1, 17, 400])('F47: a batch cut off %i bytes before its end leaves nothing behind', async missing => {
  const faults: TransportFaults = {}
  const rig = rigWith(faults)
  faults.onSend = datagram => {
    if (!isBatch(datagram)) return datagram
    faults.onSend = undefined
    return datagram.slice(0, -missing)
  }
  await rig.sync(services(3))
  expect(rig.kinds()).toEqual(['failed', 'committed', 'synced'])
  expect(await differences(services(3))).toEqual([])
})

it('F46: a commit whose answer is lost is not believed because somebody else committed', async () => {
  const kernel = new FakeKernel()
  const faults: TransportFaults = {}
  const rig = rigWith(faults, kernel.open())
  await rig.sync(services(3))
  faults.onSend = datagram => {
    if (!isBatch(datagram)) return datagram
    faults.onSend = undefined
    faults.onReceive = () => {
      faults.onReceive = undefined
      throw new SystemError('recvmsg', errnoNumber('ENOBUFS'), 'ENOBUFS')
    }
    // Ours does nothing, and another that touches none of our tables comes at the same time.
    kernel.generation++
    return datagram.slice(0, -BATCH_END_BYTES)
  }
  await rig.sync(services(4))
  expect(await differences(services(4), {}, kernel.open())).toEqual([])
})

const NFT_MSG_DELCHAIN = 0x0a05

it('F49: a foreign rule that holds a chain which we delete does not stop the sync', async () => {
  const faults: TransportFaults = {}
  const rig = rigWith(faults)
  // Each needs a chain of its own; so many unused ones are not kept.
  const sticky = Array.from({ length: 70 }, (_, i) => service(i, { affinityS: 1_000 + i })).flat()
  await rig.sync(sticky)
  let held = 0
  faults.onSend = datagram => {
    if (held > 0 || !messagesIn(datagram).some(({ type }) => type === NFT_MSG_DELCHAIN)) return datagram
    held++
    nft('add chain ip kube-proxy held; add rule ip kube-proxy held goto aff-2-1040')
    return datagram
  }
  await rig.sync(service(100))
  await rig.until(() => !/aff-2-1040|held/.test(nft('list chains')))
  expect(held).toBe(1)
  expect(await differences(service(100))).toEqual([])
  expect(rig.of('quarantined')).toEqual([])
  expect(rig.of('failed')).toEqual([])
})

it('F50: an element that goes behind our back, as we delete it, counts as gone', async () => {
  const faults: TransportFaults = {}
  const rig = rigWith(faults)
  await rig.sync(services(5))
  beforeNextBatch(faults, () => nft(`delete element ip kube-proxy frontends { ${clusterIp(4)} . tcp . 80 }`))
  await rig.sync(services(4))
  await rig.wait(300)
  expect(await differences(services(4))).toEqual([])
  expect(rig.of('quarantined')).toEqual([])
  expect(rig.of('failed')).toEqual([])
})

it('F54: a set that others fill up is emptied of theirs, and takes ours', async () => {
  const faults: TransportFaults = {}
  const rig = rigWith(faults)
  await rig.sync(services(900))
  beforeNextBatch(faults, () => {
    const room = Array.from({ length: 4096 - 900 }, (_, i) => `172.31.${i >> 8}.${i & 255} . tcp . 80 : 0x1`)
    nft(`add element ip kube-proxy frontends { ${room.join(', ')} }`)
  })
  await rig.sync(services(901))
  await rig.wait(300)
  expect(await differences(services(901))).toEqual([])
  expect(rig.of('quarantined')).toEqual([])
})

it('F54: sets that grow past their size are made anew, larger, in one commit', async () => {
  const rig = rigWith({})
  await rig.sync(services(900))
  const commits = rig.of('committed').length
  await rig.sync(services(4_500))
  expect(rig.of('committed').length).toBe(commits + 1)
  expect(frontendNames().size).toBe(4_500)
  expect(await differences(services(4_500))).toEqual([])
})

it('F54: 5,000 elements go through a socket that takes 32 KiB at a time', async () => {
  const faults: TransportFaults = { sendLimitBytes: 32 * 1024 }
  const longest = { bytes: 0 }
  faults.onSend = datagram => {
    longest.bytes = Math.max(longest.bytes, datagram.length)
    return datagram
  }
  const rig = rigWith(faults)
  await rig.sync(services(1_250))
  expect(longest.bytes).toBeLessThanOrEqual(32 * 1024)
  expect(await differences(services(1_250))).toEqual([])
  expect(rig.of('failed')).toEqual([])
})

it.each([10_000, 40_000, 100_000])(
  'F54: %i elements of one set are there once each, past every 16-bit length',
  async count => {
    nft('table ip kube-proxy { set cluster-ips { type ipv4_addr; size 131072; }; }')
    const client = createNftClient({ transport: openNetfilter(), clock: systemClock })
    try {
      const [table] = (await client.list([{ family: 'ip', name: 'kube-proxy' }])).ruleset.tables
      const set = table?.sets.get('cluster-ips')
      if (set === undefined) throw new Error('no set')
      const keys = Array.from({ length: count }, (_, i) =>
        String.fromCharCode(10, i >> 16, (i >> 8) & 255, i & 255),
      )
      const elements = keys.map(key => ({
        element: { set: set.name, key, data: undefined, comment: '' },
        group: '@test',
      }))
      const operation = {
        verb: 'add-elements',
        family: 'ip',
        table: 'kube-proxy',
        set,
        ...columns(elements),
      } as const
      expect((await client.commit([operation])).outcome).toBe('committed')
      const listed = (await client.list([{ family: 'ip', name: 'kube-proxy' }])).ruleset.tables[0]
      const found = [...(listed?.elements.values() ?? [])].flat().map(({ key }) => key)
      expect(found).toHaveLength(count)
      expect(new Set(found)).toEqual(new Set(keys))
      const text = nft('list set ip kube-proxy cluster-ips')
      expect(text.match(/10\.\d+\.\d+\.\d+/g)).toHaveLength(count)
    } finally {
      await client.close()
    }
  },
)

/** Makes the kernel refuse the element of this Service: its key gets a type that no datum has. */
function poison(datagram: Uint8Array, number: number): Uint8Array {
  const bytes = Buffer.from(datagram)
  const [a = 0, b = 0, c = 0, d = 0] = clusterIp(number).split('.').map(Number)
  // NFTA_DATA_VALUE of 12 bytes: address, protocol, port.
  const value = Buffer.from([16, 0, 1, 0, a, b, c, d, 6, 0, 0, 0, 0, 80, 0, 0])
  for (let at = bytes.indexOf(value); at >= 0; at = bytes.indexOf(value, at + 1)) bytes[at + 2] = 9
  return bytes
}

const NLMSG_ERROR = 2
const NLM_F_ACK_TLVS = 0x200

/** An error without what the kernel says beyond the number. */
function withoutWords(datagram: Uint8Array): Uint8Array {
  const bytes = Buffer.from(datagram)
  for (const { start, type, flags } of messagesIn(datagram))
    if (type === NLMSG_ERROR) bytes.writeUInt16LE(flags & ~NLM_F_ACK_TLVS, start + 6)
  return bytes
}

it.each([
  ['with the offset of the element', (datagram: Uint8Array) => datagram, 1],
  ['without a word which', withoutWords, 2 + Math.ceil(Math.log2(5_000))],
])(
  'F57: one Service of 5,000 that the kernel refuses, %s, is left out and tried again alone',
  async (_, onReceive, refusalsMax) => {
    let refusals = 0
    const faults: TransportFaults = { onReceive }
    faults.onSend = datagram => {
      if (!isBatch(datagram)) return datagram
      const poisoned = poison(datagram, 2_345)
      if (!poisoned.every((byte, i) => byte === datagram[i])) refusals++
      return poisoned
    }
    const rig = rigWith(faults)
    rig.offer(services(5_000))
    await rig.until(() => rig.of('quarantined').length > 0, 20_000)
    await rig.synced()
    expect(refusals).toBeLessThanOrEqual(refusalsMax)
    const names = frontendNames()
    expect(names.size).toBe(4_999)
    expect(names.has(nameOf(2_345))).toBe(false)
    const [entry] = rig.reconciler.status.quarantined
    expect(entry?.service).toBe(nameOf(2_345))
    expect(entry?.error.message).toMatch(/EINVAL/)
    // A change of another Service goes in meanwhile.
    await rig.sync(services(5_001))
    expect(rig.reconciler.status.quarantined).toHaveLength(1)
    faults.onSend = undefined
    await rig.until(() => rig.of('released').length === 1)
    expect(rig.reconciler.status.quarantined).toEqual([])
    const retry = [...(rig.of('committed').at(-1)?.plan.describe() ?? [])]
    expect(new Set(retry.map(({ service: name }) => name))).toEqual(new Set([nameOf(2_345)]))
    expect(await differences(services(5_001))).toEqual([])
  },
)

it('F57: one Service that the kernel refuses, in a later part of what does not fit into one datagram, is left out', async () => {
  const faults: TransportFaults = { sendLimitBytes: 32 * 1024 }
  faults.onSend = datagram => (isBatch(datagram) ? poison(datagram, 700) : datagram)
  const rig = rigWith(faults)
  rig.offer(services(1_250))
  await rig.until(() => rig.of('quarantined').length > 0, 20_000)
  await rig.synced()
  expect(rig.reconciler.status.quarantined.map(({ service: name }) => name)).toEqual([nameOf(700)])
  expect(frontendNames().size).toBe(1_249)
  faults.onSend = undefined
  await rig.until(() => rig.of('released').length === 1)
  expect(await differences(services(1_250))).toEqual([])
})

const NFPROTO_IPV6 = 10
/** A family that nf_tables does not have, as it has none of IPv6 without CONFIG_NF_TABLES_IPV6. */
const NFPROTO_DECNET = 12

/** Sends what is for IPv6 as something for which this kernel lacks a part. */
const WITHOUT: Readonly<Record<string, (bytes: Buffer, start: number, end: number) => void>> = {
  nf_tables: (bytes, start) => bytes.writeUInt8(NFPROTO_DECNET, start + 16),
  fib: (bytes, start, end) => rename(bytes.subarray(start, end), 'fib\0'),
  reject: (bytes, start, end) => rename(bytes.subarray(start, end), 'reject\0'),
  'xt MASQUERADE': (bytes, start, end) => rename(bytes.subarray(start, end), 'MASQUERADE\0'),
}

function rename(message: Buffer, name: string): void {
  for (let at = message.indexOf(name); at >= 0; at = message.indexOf(name, at)) message.write('x', at)
}

function withoutPart(part: string, datagram: Uint8Array): Uint8Array {
  if (!isBatch(datagram)) return datagram
  const bytes = Buffer.from(datagram)
  for (const { start, end, type } of messagesIn(datagram))
    if (type >> 8 === 10 && bytes[start + 16] === NFPROTO_IPV6) WITHOUT[part]?.(bytes, start, end)
  return bytes
}

it.each([
  ['nftables', 'nf_tables', /EOPNOTSUPP .*CONFIG_NF_TABLES_IPV6/],
  ['nftables', 'fib', /ENOENT/],
  ['nftables', 'reject', /ENOENT/],
  ['iptables', 'nf_tables', /EOPNOTSUPP .*CONFIG_NF_TABLES_IPV6/],
  ['iptables', 'xt MASQUERADE', /ENOENT/],
])('in %s mode a kernel without %s in IPv6 serves IPv4, and IPv6 once it can', async (mode, part, words) => {
  const faults: TransportFaults = { onSend: datagram => withoutPart(part, datagram) }
  const client = createNftClient({
    transport: new FaultyTransport(openNetfilter(), faults),
    clock: systemClock,
  })
  const made = { client, clock: systemClock }
  const plane: Dataplane<unknown, Plan<unknown>> = mode === 'nftables'
    ? createNftablesPlane({ ...made, options: DEFAULT_NFTABLES_OPTIONS })
    : new IptablesPlane({ ...made, options: DEFAULT_IPTABLES_OPTIONS })
  const rig = new PlaneRig({ plane, clock: systemClock })
  try {
    await rig.sync([...dual(1), ...dual(2)])
    expect(rig.of('family-failed')[0]).toMatchObject({ family: 'IPv6' })
    expect(rig.of('family-failed')[0]?.error.message).toMatch(words)
    expect([rig.of('failed'), rig.of('quarantined')]).toEqual([[], []])
    expect(listRuleset()).toContain('10.96.1.2')
    expect(listRuleset()).not.toContain('fd00:96::2')
    faults.onSend = undefined
    await rig.until(() => rig.kinds().includes('family-restored'))
    expect(listRuleset()).toContain('fd00:96::2')
  } finally {
    await rig.close()
    await client.close()
  }
})
