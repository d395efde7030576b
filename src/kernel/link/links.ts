import type { Clock } from '../../base/clock.ts'
import { cidrOf, contains, formatCidr, type Ip } from '../../base/ip.ts'
import type { ByteView, ByteWriter } from '../../netlink/attribute.ts'
import { watchGroups } from '../../netlink/batch.ts'
import { octets, string } from '../../netlink/codecs.ts'
import { Connection } from '../../netlink/connection.ts'
import {
  AF_INET,
  AF_INET6,
  AF_UNSPEC,
  NLM_F_ACK,
  NLM_F_CREATE,
  NLM_F_DUMP,
  NLM_F_EXCL,
  NLM_F_REQUEST,
} from '../../netlink/constants.ts'
import type { Request } from '../../netlink/conversation.ts'
import { errnoNumber, malformed, NetlinkError } from '../../netlink/errors.ts'
import { type Batch, encodeMessage, type Message } from '../../netlink/message.ts'
import { attributeSet, nested, readAttributes, writeAttributes } from '../../netlink/schema.ts'
import { SystemError, type Transport } from '../../netlink/transport.ts'

/** linux/rtnetlink.h, linux/if_link.h and linux/if_addr.h, under the headers' own names. */

export const RTM_NEWLINK = 16
export const RTM_DELLINK = 17
export const RTM_GETLINK = 18
export const RTM_NEWADDR = 20
export const RTM_DELADDR = 21
export const RTM_GETADDR = 22

export const IFA_F_SECONDARY = 0x01
export const IFA_F_NODAD = 0x02

export const RTNLGRP_IPV4_IFADDR = 5
export const RTNLGRP_IPV6_IFADDR = 9

/** The attributes of an interface address that kprobe uses, as linux/if_addr.h describes them. */
export const ADDRESS = attributeSet({
  /** The address of the peer on a point-to-point interface, otherwise the own address. */
  address: [1, octets],
  /** The own address; IPv6 has it only where `address` is the peer's. */
  local: [2, octets],
})

export interface IfAddrMsg {
  readonly family: number
  readonly prefixLength: number
  readonly flags: number
  readonly scope: number
  readonly index: number
}
export const IFADDRMSG_LENGTH = 8

export function writeIfAddrMsg(out: ByteWriter, head: IfAddrMsg): void {
  out.u8(head.family)
  out.u8(head.prefixLength)
  out.u8(head.flags)
  out.u8(head.scope)
  out.u32(head.index)
}

export function readIfAddrMsg(view: ByteView, { start, end }: Message): IfAddrMsg {
  if (end - start < IFADDRMSG_LENGTH) throw malformed('a message without its ifaddrmsg', start)
  const { data } = view
  return {
    family: data.getUint8(start),
    prefixLength: data.getUint8(start + 1),
    flags: data.getUint8(start + 2),
    scope: data.getUint8(start + 3),
    index: data.getUint32(start + 4, true),
  }
}

const LINK_INFO = attributeSet({
  /** struct rtnl_link_ops.kind: `dummy`; absent for hardware. */
  kind: [1, string],
})

/** The attributes of a device that kprobe uses, as linux/if_link.h describes them. */
export const LINK = attributeSet({
  name: [3, string],
  info: [18, nested(LINK_INFO)],
})

export const IFINFOMSG_LENGTH = 16

/** Writes struct ifinfomsg for a device by its index, or by its name when that is 0; it changes no flags. */
export function writeIfInfoMsg(out: ByteWriter, index: number): void {
  out.u32(0)
  out.u32(index)
  out.u32(0)
  out.u32(0)
}

export function readIfInfoMsg(view: ByteView, { start, end }: Message): number {
  if (end - start < IFINFOMSG_LENGTH) throw malformed('a message without its ifinfomsg', start)
  return view.data.getUint32(start + 4, true)
}

export interface Link {
  readonly index: number
  readonly name: string
  /** `dummy`, `veth`; undefined for hardware and the loopback device. */
  readonly kind: string | undefined
}

/** Finds a device by its name or its index; undefined when there is none. Throws what roundTrip throws. */
export function findLink(connection: Connection, key: string | number): Link | undefined {
  let found: Link | undefined
  const [name, index] = typeof key === 'string' ? [key, 0] : [undefined, key]
  try {
    connection.roundTrip({
      operation: 'read',
      object: `device ${key}`,
      build: sequence =>
        encodeMessage({ type: RTM_GETLINK, flags: NLM_F_REQUEST, sequence }, out => {
          writeIfInfoMsg(out.out, index)
          writeAttributes(out, LINK, { name })
        }),
      onMessage(view, message) {
        if (message.type === RTM_NEWLINK) found = decodeLink(view, message)
      },
    })
  } catch (error) {
    if (!(error instanceof NetlinkError) || error.code !== 'ENODEV') throw error
  }
  return found
}

function decodeLink(view: ByteView, message: Message): Link {
  const index = readIfInfoMsg(view, message)
  const span = { start: message.start + IFINFOMSG_LENGTH, end: message.end }
  const { name = '', info } = readAttributes(view, LINK, span)
  return { index, name, kind: info?.kind }
}

/** Encodes a request to create a device; it stays down. */
export function encodeNewLink(link: { readonly name: string; readonly kind: string }, sequence: number) {
  const flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL
  return encodeMessage({ type: RTM_NEWLINK, flags, sequence }, out => {
    writeIfInfoMsg(out.out, 0)
    writeAttributes(out, LINK, { name: link.name, info: { kind: link.kind } })
  })
}

export function encodeDelLink(index: number, sequence: number): Uint8Array {
  const head = { type: RTM_DELLINK, flags: NLM_F_REQUEST | NLM_F_ACK, sequence }
  return encodeMessage(head, out => writeIfInfoMsg(out.out, index))
}

export interface AddressChange {
  readonly verb: 'add' | 'remove'
  readonly ip: Ip
}

export const CHANGE_BYTES_MAX = 64

/** Appends the message of a change to the device with this index. */
export function writeChange(batch: Batch<AddressChange>, change: AddressChange, index: number): void {
  const { verb, ip } = change
  const adds = verb === 'add'
  if (adds) batch.open(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL)
  else batch.open(RTM_DELADDR)
  const family = ip.length === 4 ? AF_INET : AF_INET6
  // A dummy device has no neighbors, so duplicate address detection is useless (only IPv6 would do it).
  const flags = adds && family === AF_INET6 ? IFA_F_NODAD : 0
  writeIfAddrMsg(batch.out.out, { family, prefixLength: ip.length * 8, flags, scope: 0, index })
  // Without `address` the kernel removes an IPv4 address whatever its prefix is (inet_rtm_deladdr).
  const attributes = adds && family === AF_INET ? { address: ip, local: ip } : { local: ip }
  writeAttributes(batch.out, ADDRESS, attributes)
  batch.close(change)
}

export interface LinkAddress {
  readonly ip: Ip
  readonly index: number
  readonly prefixLength: number
  /** IFA_F_SECONDARY of IPv4: an earlier address has the same prefix. */
  readonly secondary: boolean
}

/** A list that changes during a read may lack addresses; a read takes milliseconds, so retries are cheap. */
const ATTEMPTS = 8
const WORDS = { operation: 'list', object: 'addresses of interfaces' } as const

/**
 * Lists the addresses of all devices (the kernel filters by device only for sockets with strict checking). Reads them
 * again while `isTorn` returns true. Rejects as AddressReader.read does.
 */
export async function listAddresses(
  connection: Connection,
  clock: Clock,
  isTorn: () => boolean = () => false,
): Promise<readonly LinkAddress[]> {
  for (let attempt = 1; attempt <= ATTEMPTS; attempt++) {
    const found: LinkAddress[] = []
    const whole = await connection.dump(addressesInto(found))
    if (whole && !isTorn()) return found
    // 5 ms more after each attempt: addresses come in bursts of some milliseconds.
    await new Promise<void>(resolve => clock.after(5 * attempt, resolve))
  }
  const extendedAck = `they changed during each of ${ATTEMPTS} attempts`
  throw new NetlinkError({ ...WORDS, errno: errnoNumber('EAGAIN'), extendedAck })
}

/** Lists the same synchronously, as `dumpNow`; undefined where the list changed during the read. */
export function listAddressesNow(connection: Connection): readonly LinkAddress[] | undefined {
  const found: LinkAddress[] = []
  return connection.dumpNow(addressesInto(found)) ? found : undefined
}

function addressesInto(found: LinkAddress[]): Request {
  return {
    ...WORDS,
    build: encodeGetAddresses,
    onMessage(view, message) {
      const address = decodeAddress(view, message)
      if (address !== undefined) found.push(address)
    },
  }
}

/** Returns the addresses sorted, without duplicates. */
export function ipsOf(addresses: readonly LinkAddress[]): readonly Ip[] {
  return [...new Set(addresses.map(({ ip }) => ip))].sort()
}

function encodeGetAddresses(sequence: number): Uint8Array {
  const all = { family: AF_UNSPEC, prefixLength: 0, flags: 0, scope: 0, index: 0 }
  const head = { type: RTM_GETADDR, flags: NLM_F_REQUEST | NLM_F_DUMP, sequence }
  return encodeMessage(head, ({ out }) => writeIfAddrMsg(out, all))
}

/** Decodes an IP address; undefined for other families, which have addresses, too. */
function decodeAddress(view: ByteView, message: Message): LinkAddress | undefined {
  if (message.type !== RTM_NEWADDR) return undefined
  const { family, index, prefixLength, flags } = readIfAddrMsg(view, message)
  if (family !== AF_INET && family !== AF_INET6) return undefined
  const start = message.start + IFADDRMSG_LENGTH
  const { local, address } = readAttributes(view, ADDRESS, { start, end: message.end })
  const ip = local ?? address
  if (ip === undefined) return undefined
  const length = family === AF_INET ? 4 : 16
  if (ip.length !== length) throw malformed(`an address of ${ip.length} bytes in family ${family}`, start)
  // In IPv6 the same bit means a temporary address.
  const secondary = family === AF_INET && (flags & IFA_F_SECONDARY) !== 0
  return { ip, index, prefixLength, secondary }
}

/**
 * Returns the addresses of the kernel's list that interfaces were configured with, and `nodeIps`, the addresses of
 * the Node object. All other addresses are VIPs, which keepalived and similar programs add and remove. VIPs are: /32
 * and /128 addresses, all but the oldest address of a prefix, and all other addresses of a prefix that contains an
 * address of the Node. An ambiguous address is a VIP.
 */
export function ownAddresses(all: readonly LinkAddress[], nodeIps: readonly Ip[]): ReadonlySet<Ip> {
  const nodes = nodeIps.map(nodeIp => ({ nodeIp, at: all.filter(({ ip }) => ip === nodeIp) }))
  const own = new Map<string, Ip>()
  for (const { ip, index, prefixLength, secondary } of all) {
    if (prefixLength === ip.length * 8 || secondary) continue
    const prefix = cidrOf(ip, prefixLength)
    // If the Node's address left its interface for a moment, the kernel promoted a VIP.
    const isNodes = nodes.some(
      ({ nodeIp, at }) =>
        contains(prefix, nodeIp) && (at.length === 0 || at.some(address => address.index === index)),
    )
    // The last one of several wins: the kernel lists the newest IPv6 address first (ipv6_link_dev_addr).
    if (!isNodes) own.set(`${index} ${formatCidr(prefix)}`, ip)
  }
  return new Set([...own.values(), ...nodeIps])
}

interface AddressReaderOptions {
  /** Opens a NETLINK_ROUTE socket. */
  readonly openTransport: () => Transport
  readonly clock: Clock
  /** Name of a device whose addresses and changes are ignored. */
  readonly except?: string | undefined
}

export interface AddressReader {
  /**
   * Reads the addresses of all interfaces, up or down; sorted, without duplicates. Rejects with NetlinkError (EAGAIN:
   * they changed during every attempt) or SystemError.
   */
  read(): Promise<readonly Ip[]>
  /**
   * Calls `changed` when the kernel reports that addresses came or went, and when it lost notifications. Returns a
   * function that stops the watch; undefined where the group cannot be joined: the caller must then poll.
   */
  watch(changed: () => void): (() => Promise<void>) | undefined
  close(): Promise<void>
}

/** Creates a reader of this network namespace's addresses (RTM_GETADDR). It does not reuse a failed socket. */
export function createAddressReader({ openTransport, clock, except }: AddressReaderOptions): AddressReader {
  let connection: Connection | undefined
  /** Index of the excepted device at the last read. */
  let exceptIndex: number | undefined
  const close = async (): Promise<void> => {
    const closing = connection
    connection = undefined
    await closing?.close()
  }
  const readFrom = async (open: Connection): Promise<readonly Ip[]> => {
    if (except === undefined) return ipsOf(await listAddresses(open, clock))
    exceptIndex = findLink(open, except)?.index
    // If the device is created during the read, its addresses would be in the list.
    const isTorn = (): boolean => {
      const before = exceptIndex
      exceptIndex = findLink(open, except)?.index
      return exceptIndex !== before
    }
    const all = await listAddresses(open, clock, isTorn)
    return ipsOf(all.filter(({ index }) => index !== exceptIndex))
  }
  const read = async (): Promise<readonly Ip[]> => {
    // Serving traffic does not depend on the address list, so its timeout is shorter than that of a commit.
    connection ??= new Connection({ transport: openTransport(), clock, timeoutMs: 3_000 })
    try {
      return await readFrom(connection)
    } catch (error) {
      await close()
      throw error
    }
  }
  const isExcepted = (index: number): boolean => index === exceptIndex
  return { read, watch: changed => watchAddresses(openTransport, isExcepted, changed), close }
}

/** More at a time take several turns of the event loop. */
const NOTIFICATIONS_PER_TURN = 64

function watchAddresses(
  openTransport: () => Transport,
  isExcepted: (index: number) => boolean,
  changed: () => void,
): (() => Promise<void>) | undefined {
  let mayMatter = false
  let transport: Transport | undefined
  try {
    const open = openTransport()
    transport = open
    const stop = watchGroups({
      transport: open,
      groups: [RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR],
      messagesPerTurn: NOTIFICATIONS_PER_TURN,
      take(view, message) {
        const isAddress = message.type === RTM_NEWADDR || message.type === RTM_DELADDR
        mayMatter ||= !isAddress || !isExcepted(readIfAddrMsg(view, message).index)
      },
      lost() {
        mayMatter = true
      },
      turned() {
        if (mayMatter) changed()
        mayMatter = false
      },
    })
    return async () => {
      stop()
      await open.close()
    }
  } catch (error) {
    if (!(error instanceof SystemError)) throw error
    void transport?.close()
    return undefined
  }
}
