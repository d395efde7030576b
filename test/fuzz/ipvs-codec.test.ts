import * as fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { IpvsClient } from '../../src/kernel/ipvs/client.ts'
import {
  decodeDestination,
  decodeInfo,
  decodeServer,
  decodeTimeouts,
} from '../../src/kernel/ipvs/messages.ts'
import {
  destinationKey,
  IP_VS_SVC_F_HASHED,
  type IpvsStats,
  type RealServer,
  serverKey,
  type VirtualServer,
} from '../../src/kernel/ipvs/state.ts'
import { type ByteView, viewOf } from '../../src/netlink/attribute.ts'
import { type Message, readMessages } from '../../src/netlink/message.ts'
import { FakeIpvs } from '../support/fake-ipvs/kernel.ts'
import { type FakeServer, NO_STATS } from '../support/fake-ipvs/objects.ts'
import { destinationMessage, serverMessage } from '../support/fake-ipvs/replies.ts'
import { newDestination, newServer } from '../support/ipvs-objects.ts'
import { octets } from '../support/nft-arbitraries.ts'
import { runs } from '../support/runs.ts'
import { tolerant } from '../support/tolerant.ts'

const u64 = fc.bigInt({ min: 0n, max: 0xffff_ffff_ffff_ffffn })
const u32 = fc.nat({ max: 0xffff_ffff })
const port = fc.integer({ min: 0, max: 65_535 })
const address = fc.oneof(octets(4, 4), octets(16, 16))
const stats: fc.Arbitrary<IpvsStats> = fc.record({
  connections: u64,
  packetsIn: u64,
  packetsOut: u64,
  bytesIn: u64,
  bytesOut: u64,
})

const server: fc.Arbitrary<VirtualServer> = address.chain(ip =>
  fc.record({
    protocol: fc.constantFrom('TCP' as const, 'UDP' as const, 'SCTP' as const),
    ip: fc.constant(ip),
    port,
    scheduler: fc.constantFrom('rr', 'wrr', 'mh', 'lblcr', 'none'),
    flags: u32.map(flags => (flags & ~IP_VS_SVC_F_HASHED) >>> 0),
    timeoutS: u32,
    netmask: ip.length === 4 ? u32 : fc.integer({ min: 1, max: 128 }),
  }),
)

/** Those that packets can be sent to: the rest is refused. */
function destination(length: number): fc.Arbitrary<RealServer> {
  return fc.record({
    ip: octets(length - 1, length - 1).map(rest => `\x20${rest}`),
    port,
    weight: fc.nat({ max: 0x7fff_ffff }),
    forwarding: fc.integer({ min: 0, max: 7 }),
  })
}

const pool = server.chain(one =>
  fc.record({
    server: fc.constant(one),
    destinations: fc.uniqueArray(destination(one.ip.length), {
      maxLength: 5,
      selector: destinationKey,
    }),
  }),
)

describe('virtual servers at random', () => {
  it('are read back as they were written', async () => {
    const pools = fc.uniqueArray(pool, { maxLength: 6, selector: each => serverKey(each.server) })
    await fc.assert(
      fc.asyncProperty(pools, stats, async (pools, counted) => {
        const kernel = new FakeIpvs()
        const client = new IpvsClient({ transport: kernel.open(), clock: systemClock })
        const result = await client.commit(
          pools.flatMap(({ server, destinations }) => [
            newServer(server),
            ...destinations.map(each => newDestination(server, each)),
          ]),
        )
        expect(result.failures).toEqual([])
        for (const each of kernel.servers.values())
          for (const destination of each.destinations.values()) destination.stats = counted
        expect(await client.servers()).toEqual(pools.map(({ server }) => server))
        const lists = await client.destinations(pools.map(({ server }) => server))
        expect(lists.map(list => list.map(({ destination }) => destination).reverse())).toEqual(
          pools.map(({ destinations }) => destinations),
        )
        expect(lists.flat().map(({ stats }) => stats)).toEqual(lists.flat().map(() => counted))
        await client.close()
      }),
      { seed: 51, numRuns: runs(150) },
    )
  })
})

const DECODERS: readonly ((view: ByteView, message: Message) => unknown)[] = [
  decodeServer,
  decodeDestination,
  decodeInfo,
  decodeTimeouts,
]

/** Gives how many decoders took a message; anything but a value or a NetlinkError fails the test. */
function decodeAll(bytes: Uint8Array): number {
  const view = viewOf(bytes)
  let taken = 0
  for (const each of tolerant(() => readMessages(view)) ?? [])
    for (const decode of DECODERS) if (tolerant(() => decode(view, each)) !== undefined) taken++
  return taken
}

const HEAD = { type: 0x1c, flags: 2, sequence: 5, portId: 77 }
const SERVER: FakeServer = {
  family: 2,
  protocol: 6,
  address: `\x0a\x60\0\x01${'\0'.repeat(12)}`,
  port: 443,
  mark: 0,
  scheduler: 'rr',
  flags: 1,
  timeoutS: 10_800,
  netmask: '\xff\xff\xff\xff',
  destinations: new Map(),
}
const RECORDED: readonly Uint8Array[] = [
  serverMessage(HEAD, SERVER),
  serverMessage(HEAD, { ...SERVER, mark: 7 }),
  destinationMessage(HEAD, {
    family: 2,
    address: SERVER.address,
    port: 80,
    weight: 1,
    forwarding: 0,
    connectionsMax: 0,
    connectionsLow: 0,
    activeConnections: 1,
    inactiveConnections: 2,
    stats: NO_STATS,
  }),
]

describe('answers of IPVS', () => {
  it('are taken whole, and a datagram that is cut off anywhere is not', () => {
    expect(RECORDED.map(decodeAll)).toEqual([1, 0, 1])
    for (const whole of RECORDED)
      for (let length = 0; length < whole.length; length++)
        expect(decodeAll(whole.subarray(0, length)), `${length}`).toBe(0)
  })

  it('are decoded or refused whichever bit is flipped', () => {
    for (const whole of RECORDED)
      for (let bit = 0; bit < whole.length * 8; bit++) {
        const damaged = Uint8Array.from(whole)
        damaged[bit >> 3] = (damaged[bit >> 3] ?? 0) ^ (1 << (bit & 7))
        decodeAll(damaged)
      }
  })

  it('are decoded or refused when lengths and types within are of any value', () => {
    for (const whole of RECORDED)
      for (let at = 20; at + 2 <= whole.length; at += 2)
        for (const value of [0, 1, 3, 4, 5, 0x7f, 0xffff]) {
          const damaged = Buffer.from(whole)
          damaged.writeUInt16LE(value, at)
          decodeAll(damaged)
        }
  })

  it('are decoded or refused when they are noise behind a good header', () => {
    const commands = fc.constantFrom(1, 5, 12, 14)
    fc.assert(
      fc.property(commands, fc.uint8Array({ maxLength: 200 }), (command, noise) => {
        const bytes = Buffer.alloc(20 + noise.length)
        bytes.writeUInt32LE(bytes.length, 0)
        bytes.writeUInt16LE(0x1c, 4)
        bytes[16] = command
        bytes.set(noise, 20)
        decodeAll(bytes)
      }),
      { seed: 52, numRuns: runs(2_000) },
    )
  })
})
