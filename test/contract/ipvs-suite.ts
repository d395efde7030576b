import { describe, expect, type TestAPI, test } from 'vitest'
import { systemClock } from '../../src/base/clock.ts'
import { u32be } from '../../src/base/octets.ts'
import { IpvsClient, type IpvsResult } from '../../src/kernel/ipvs/client.ts'
import { encodeCommand, encodeListServers } from '../../src/kernel/ipvs/messages.ts'
import {
  IP_VS_SVC_F_PERSISTENT,
  IP_VS_SVC_F_SCHED2,
  IPVS_CMD_NEW_SERVICE,
  printSave,
  serverKey,
  type VirtualServer,
} from '../../src/kernel/ipvs/state.ts'
import { Connection } from '../../src/netlink/connection.ts'
import { AF_INET, AF_INET6 } from '../../src/netlink/constants.ts'
import { findFamily } from '../../src/netlink/genetlink.ts'
import type { Transport } from '../../src/netlink/transport.ts'
import {
  changeDestination,
  changeServer,
  deleteDestination,
  deleteServer,
  newDestination,
  newServer,
  real,
  virtual,
} from '../support/ipvs-objects.ts'
import { lent, type SocketLimits } from './target.ts'
import { received } from './wire.ts'

/** What the kernel has, as `ipvsadm -S -n` says it. */
export async function saved(client: IpvsClient): Promise<readonly string[]> {
  const servers = await client.servers()
  const lists = await client.destinations(servers)
  return printSave(
    servers.map((server, i) => ({
      server,
      destinations: (lists[i] ?? []).map(({ destination }) => destination),
    })),
  )
}

const A = virtual('10.96.0.1', 443)
const B = virtual('10.96.0.2', 80)
const V6 = virtual('fd00:96::1', 53, { protocol: 'UDP' })
const POD = real('10.0.0.1', 8080)
const POD6 = real('fd00:1::1', 5353)
const DONE = { unknown: undefined, failures: [] } as const

const codes = ({ failures }: IpvsResult): readonly string[] => failures.map(({ code }) => code)

/** A kernel, real or not, whose IPVS is empty. */
export interface IpvsTarget {
  open(limits?: SocketLimits): Transport
}

/** What the client and any kernel do together; `factory` makes a new one, and that before is not used any more. */
export function ipvsSuite(factory: () => IpvsTarget): void {
  const tools = test.extend<Tools>({
    open: ({ task: _ }, use) => use(factory().open),
    client: ({ open }, use) => lent(new IpvsClient({ transport: open(), clock: systemClock }), use),
  })
  describe('virtual servers', () => servers(tools))
  describe('virtual servers', () => neighbors(tools))
  describe('real servers', () => destinations(tools))
  describe('what is known wrongly', () => wrongly(tools))
  describe('what is refused', () => refusals(tools))
  describe('what is refused', () => wrongValues(tools))
  describe('settings', () => settings(tools))
  describe('sockets', () => sockets(tools))
}

interface Tools {
  readonly client: IpvsClient
  readonly open: IpvsTarget['open']
}

function servers(test: TestAPI<Tools>): void {
  test('of all protocols and both families are made, read and deleted', async ({ client }) => {
    const all = [
      A,
      virtual('10.96.0.1', 443, { protocol: 'UDP', scheduler: 'wlc' }),
      virtual('10.96.0.1', 443, { protocol: 'SCTP', scheduler: 'sh' }),
      V6,
      virtual('fd00:96::1', 53, { scheduler: 'lc' }),
    ]
    expect(await client.commit(all.map(newServer))).toMatchObject({ ...DONE, messages: 5 })
    const byKey = (list: readonly VirtualServer[]) => new Map(list.map(each => [serverKey(each), each]))
    expect(byKey(await client.servers())).toEqual(byKey(all))
    expect(await client.commit(all.map(deleteServer))).toMatchObject(DONE)
    expect(await saved(client)).toEqual([])
  })

  test('keep persistence, its netmask and the flags of the scheduler, and lose them again', async ({
    client,
  }) => {
    const sticky = { flags: IP_VS_SVC_F_PERSISTENT, timeoutS: 10_800 }
    const all = [
      virtual('10.96.0.1', 1, sticky),
      virtual('10.96.0.1', 2, { ...sticky, netmask: 0xffff_ff00 }),
      virtual('fd00:96::1', 3, { ...sticky, netmask: 64 }),
      virtual('10.96.0.1', 4, { scheduler: 'mh', flags: IP_VS_SVC_F_SCHED2 }),
    ]
    expect(await client.commit(all.map(newServer))).toMatchObject(DONE)
    expect(await saved(client)).toEqual([
      '-A -t 10.96.0.1:1 -s rr -p 10800',
      '-A -t 10.96.0.1:2 -s rr -p 10800 -M 255.255.255.0',
      '-A -t 10.96.0.1:4 -s mh -b mh-port',
      '-A -t [fd00:96::1]:3 -s rr -p 10800 -M 64',
    ])
    await client.commit([changeServer(virtual('10.96.0.1', 1)), changeServer(virtual('10.96.0.1', 4))])
    expect((await saved(client)).filter(line => line.includes(' 10.96.0.1:'))).toEqual([
      '-A -t 10.96.0.1:1 -s rr',
      '-A -t 10.96.0.1:2 -s rr -p 10800 -M 255.255.255.0',
      '-A -t 10.96.0.1:4 -s rr',
    ])
  })

  test('change their scheduler and keep their real servers', async ({ client }) => {
    await client.commit([newServer(A), newDestination(A, POD)])
    expect(await client.commit([changeServer({ ...A, scheduler: 'wrr' })])).toMatchObject(DONE)
    expect(await saved(client)).toEqual([
      '-A -t 10.96.0.1:443 -s wrr',
      '-a -t 10.96.0.1:443 -r 10.0.0.1:8080 -m -w 1',
    ])
  })
}

function neighbors(test: TestAPI<Tools>): void {
  test('take their real servers with them', async ({ client }) => {
    await client.commit([newServer(A), newDestination(A, POD), newServer(B)])
    expect(await client.commit([deleteServer(A)])).toMatchObject(DONE)
    expect(await saved(client)).toEqual(['-A -t 10.96.0.2:80 -s rr'])
    expect(await client.destinations([A, B])).toEqual([[], []])
  })

  test('of marks are skipped', async ({ client, open }) => {
    const socket = open()
    const family = findFamily(new Connection({ transport: socket, clock: systemClock }), 'IPVS')
    for (const [sequence, number] of [AF_INET, AF_INET6].entries()) {
      const netmask = number === AF_INET ? u32be(0xffff_ffff) : '\x80\0\0\0'
      const service = { family: number, mark: 7, scheduler: 'rr', flags: 0, timeoutS: 0, netmask }
      socket.sendSync(encodeCommand(IPVS_CMD_NEW_SERVICE, { family, flags: 4, sequence }, { service }))
    }
    expect(received(socket)).toEqual(['0 OK', '1 OK'])
    await client.commit([newServer(A)])
    expect(await saved(client)).toEqual(['-A -t 10.96.0.1:443 -s rr'])
    await socket.close()
  })
}

function destinations(test: TestAPI<Tools>): void {
  test('are made, changed, read and deleted', async ({ client }) => {
    const other = real('10.0.0.2', 8080)
    await client.commit([newServer(A), newServer(V6)])
    const made = [newDestination(A, POD), newDestination(A, other), newDestination(V6, POD6)]
    expect(await client.commit(made)).toMatchObject(DONE)
    await client.commit([changeDestination(A, { ...POD, weight: 0 }), deleteDestination(A, other)])
    const [ofA, ofV6] = await client.destinations([A, V6])
    const idle = { activeConnections: 0, inactiveConnections: 0 }
    expect(ofA).toMatchObject([{ destination: { ...POD, weight: 0 }, ...idle }])
    expect(ofV6).toMatchObject([{ destination: POD6, ...idle }])
  })

  test('with the same address differ by their port, and may forward in other ways', async ({ client }) => {
    await client.commit([newServer(A)])
    const all = [real('10.0.0.1', 1), real('10.0.0.1', 2, 5), real('10.0.0.3', 443, 1, 3)]
    expect(await client.commit(all.map(each => newDestination(A, each)))).toMatchObject(DONE)
    expect((await saved(client)).slice(1)).toEqual([
      '-a -t 10.96.0.1:443 -r 10.0.0.1:1 -m -w 1',
      '-a -t 10.96.0.1:443 -r 10.0.0.1:2 -m -w 5',
      '-a -t 10.96.0.1:443 -r 10.0.0.3:443 -g -w 1',
    ])
  })

  test('come back after they were deleted', async ({ client }) => {
    await client.commit([newServer(A), newDestination(A, POD), deleteDestination(A, POD)])
    expect(await client.commit([newDestination(A, POD)])).toMatchObject(DONE)
    expect((await saved(client)).slice(1)).toEqual(['-a -t 10.96.0.1:443 -r 10.0.0.1:8080 -m -w 1'])
  })

  test('are listed for servers in the order they were asked for', async ({ client }) => {
    const all = Array.from({ length: 40 }, (_, i) => virtual('10.96.1.1', 1000 + i))
    await client.commit(
      all.flatMap((each, i) => [newServer(each), newDestination(each, real('10.0.0.1', 1 + i))]),
    )
    const lists = await client.destinations(all)
    expect(lists.map(list => list.map(({ destination }) => destination.port))).toEqual(
      all.map((_, i) => [1 + i]),
    )
  })
}

function wrongly(test: TestAPI<Tools>): void {
  test('what is there already is rejected, and stays as it is', async ({ client }) => {
    await client.commit([newServer(A), newDestination(A, POD)])
    const result = await client.commit([
      newServer({ ...A, scheduler: 'lc' }),
      newDestination(A, { ...POD, weight: 3 }),
    ])
    expect(codes(result)).toEqual(['EEXIST', 'EEXIST'])
    expect(await saved(client)).toEqual([
      '-A -t 10.96.0.1:443 -s rr',
      '-a -t 10.96.0.1:443 -r 10.0.0.1:8080 -m -w 1',
    ])
  })

  test('what is not there is not changed', async ({ client }) => {
    await client.commit([newServer(B)])
    const result = await client.commit([
      changeServer(A),
      newDestination(A, POD),
      changeDestination(B, POD),
      newDestination(B, real('10.0.0.2', 1)),
    ])
    expect(codes(result)).toEqual(['ESRCH', 'ESRCH', 'ENOENT'])
    expect(await saved(client)).toEqual([
      '-A -t 10.96.0.2:80 -s rr',
      '-a -t 10.96.0.2:80 -r 10.0.0.2:1 -m -w 1',
    ])
  })

  test('what is gone needs no deleting', async ({ client }) => {
    await client.commit([newServer(B)])
    const gone = [deleteServer(A), deleteDestination(A, POD), deleteDestination(B, POD)]
    expect(await client.commit(gone)).toMatchObject(DONE)
  })
}

function refusals(test: TestAPI<Tools>): void {
  test('a scheduler that the kernel lacks is ENOENT, and everything else is carried out', async ({
    client,
  }) => {
    const lacking = { ...A, scheduler: 'nosuch' }
    const result = await client.commit([
      newServer(B),
      newServer(lacking),
      newDestination(lacking, POD),
      newDestination(B, POD),
    ])
    expect(codes(result)).toEqual(['ENOENT', 'ESRCH'])
    expect(result.failures[0]?.error.message).toBe(
      'set virtual server TCP 10.96.0.1:443 (ns1/web): ENOENT (No such file or directory): the kernel has no scheduler nosuch (module ip_vs_nosuch)',
    )
    expect(result.failures[1]?.error.message).toContain(
      'set real server 10.0.0.1:8080 of TCP 10.96.0.1:443 (ns1/web): ESRCH',
    )
    expect(await saved(client)).toEqual([
      '-A -t 10.96.0.2:80 -s rr',
      '-a -t 10.96.0.2:80 -r 10.0.0.1:8080 -m -w 1',
    ])
  })

  test('a server keeps its scheduler when the kernel lacks the new one', async ({ client }) => {
    await client.commit([newServer(A)])
    expect(codes(await client.commit([changeServer({ ...A, scheduler: 'nosuch' })]))).toEqual(['ENOENT'])
    expect(await saved(client)).toEqual(['-A -t 10.96.0.1:443 -s rr'])
  })

  test('a scheduler whose name is too long is EINVAL', async ({ client }) => {
    expect(codes(await client.commit([newServer({ ...A, scheduler: 'x'.repeat(16) })]))).toEqual(['EINVAL'])
    expect(codes(await client.commit([newServer({ ...A, scheduler: 'x'.repeat(15) })]))).toEqual(['ENOENT'])
  })
}

function wrongValues(test: TestAPI<Tools>): void {
  test('prefixes of no length that there is are EINVAL', async ({ client }) => {
    const lengths = [0, 129, 1, 128]
    const all = lengths.map((netmask, i) => newServer(virtual('fd00:96::1', 1 + i, { netmask })))
    expect(codes(await client.commit(all))).toEqual(['EINVAL', 'EINVAL'])
    expect(await client.servers()).toHaveLength(2)
  })

  test.for(['0.0.0.0', '224.0.0.1', '255.255.255.255', '::', 'ff02::1', '::ffff:10.0.0.1'])(
    'no packet can be sent to %s: EINVAL',
    async (address, { client }) => {
      const server = address.includes(':') ? V6 : A
      const result = await client.commit([newServer(server), newDestination(server, real(address, 80))])
      expect(codes(result)).toEqual(['EINVAL'])
    },
  )

  test('a real server of the other family is EINVAL', async ({ client }) => {
    const result = await client.commit([newServer(A), newDestination(A, POD6)])
    expect(codes(result)).toEqual(['EINVAL'])
  })

  test('a weight beyond 31 bits is ERANGE', async ({ client }) => {
    const heavy = [real('10.0.0.1', 1, 0x8000_0000), real('10.0.0.1', 2, 0x7fff_ffff)]
    const result = await client.commit([newServer(A), ...heavy.map(each => newDestination(A, each))])
    expect(codes(result)).toEqual(['ERANGE'])
    expect((await client.destinations([A]))[0]?.map(({ destination }) => destination.port)).toEqual([2])
  })
}

function settings(test: TestAPI<Tools>): void {
  test('IPVS tells its version and the size of its table', ({ client }) => {
    expect(client.hasIpv6()).toBe(true)
    const { version, connectionTableSize } = client.info()
    expect(version).toMatch(/^1\.\d+\.\d+$/)
    expect(connectionTableSize).toBeGreaterThan(0)
  })

  test('timeouts are set, and those of 0 stay what they are', ({ client }) => {
    client.setTimeouts({ tcpS: 1000, tcpFinS: 100, udpS: 200 })
    expect(client.timeouts()).toEqual({ tcpS: 1000, tcpFinS: 100, udpS: 200 })
    client.setTimeouts({ tcpS: 0, tcpFinS: 101, udpS: 0 })
    expect(client.timeouts()).toEqual({ tcpS: 1000, tcpFinS: 101, udpS: 200 })
    client.setTimeouts({ tcpS: 900, tcpFinS: 120, udpS: 300 })
  })

  test('a timeout beyond what the kernel counts is EINVAL', ({ client }) => {
    expect(() => client.setTimeouts({ tcpS: 0x7fff_ffff, tcpFinS: 0, udpS: 0 })).toThrow(
      'set timeouts of IPVS to 2147483647, 0 and 0 seconds: EINVAL',
    )
  })
}

/** More than a part of a dump, or of a datagram, holds. */
const MANY = 300

function sockets(test: TestAPI<Tools>): void {
  const many = Array.from({ length: MANY }, (_, i) => virtual(`10.97.${i >> 8}.${i & 255}`, 80))

  test('many servers are told in several parts, and none is missing', async ({ client }) => {
    const result = await client.commit(many.map(newServer))
    expect(result).toMatchObject({ ...DONE, messages: MANY })
    expect(new Set((await client.servers()).map(serverKey))).toEqual(new Set(many.map(serverKey)))
  })

  test('many real servers of one server are told in several parts, and none is missing', async ({
    client,
  }) => {
    const all = many.map(({ ip, port }) => ({ ip, port, weight: 1, forwarding: 0 }))
    await client.commit([newServer(A), ...all.map(each => newDestination(A, each))])
    const [list = []] = await client.destinations([A])
    expect(new Set(list.map(({ destination }) => destination.ip))).toEqual(new Set(all.map(each => each.ip)))
  })

  test('what the send buffer does not hold goes in several datagrams', async ({ open, client }) => {
    const small = open({ sendBytesMax: 8_192 })
    const other = new IpvsClient({ transport: small, clock: systemClock })
    const lacking = many.map((each, i) =>
      i === 0 || i === MANY - 1 ? { ...each, scheduler: 'nosuch' } : each,
    )
    const result = await other.commit(lacking.map(newServer))
    expect(result.failures.map(({ operation }) => operation.server)).toEqual([lacking[0], lacking[MANY - 1]])
    expect(await client.servers()).toHaveLength(MANY - 2)
    await other.close()
  })

  test('errors that the receive buffer does not hold make the outcome unknown; what was asked for is done', async ({
    open,
    client,
  }) => {
    const other = new IpvsClient({ transport: open({ receiveBytesMax: 16_384 }), clock: systemClock })
    await client.commit([newServer(A)])
    const gone = many.map(({ ip, port }) => deleteDestination(A, { ip, port, weight: 1, forwarding: 0 }))
    const result = await other.commit([...gone, newDestination(A, POD)])
    expect(result.unknown?.message).toContain('ENOBUFS')
    expect((await saved(client)).slice(1)).toEqual(['-a -t 10.96.0.1:443 -r 10.0.0.1:8080 -m -w 1'])
    expect(await other.commit([deleteDestination(A, POD)])).toMatchObject(DONE)
    await other.close()
  })

  test('a socket has one dump at a time', async ({ open, client }) => {
    await client.commit(many.map(newServer))
    const socket: Transport = open()
    const family = findFamily(new Connection({ transport: socket, clock: systemClock }), 'IPVS')
    socket.sendSync(Buffer.concat([encodeListServers(family, 5), encodeListServers(family, 6)]))
    expect(received(socket)).toContain('6 EBUSY')
    await socket.close()
  })
}
