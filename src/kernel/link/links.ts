import type { Ip } from '../../base/ip.ts'
import type { Batch } from '../../netlink/batch.ts'
import type { ByteView } from '../../netlink/bytes.ts'
import type { Connection } from '../../netlink/connection.ts'
import { NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REQUEST } from '../../netlink/constants.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import { encodeMessage, type Message } from '../../netlink/message.ts'
import { readAttributes, writeAttributes } from '../../netlink/schema.ts'
import {
  AF_INET,
  AF_INET6,
  IFA_F_NODAD,
  RTM_DELADDR,
  RTM_DELLINK,
  RTM_GETLINK,
  RTM_NEWADDR,
  RTM_NEWLINK,
} from './constants.ts'
import { ADDRESS, IFINFOMSG_LENGTH, LINK, readIfInfoMsg, writeIfAddrMsg, writeIfInfoMsg } from './schema.ts'

/** A device of this network namespace. */
export interface Link {
  readonly index: number
  /** `dummy`, `veth`; undefined for hardware and the loopback device. */
  readonly kind: string | undefined
}

/** Finds a device by its name; undefined when there is none. Throws what roundTrip throws. */
export function findLink(connection: Connection, name: string): Link | undefined {
  const found: Link[] = []
  try {
    connection.roundTrip({
      operation: 'read',
      object: `device ${name}`,
      build: sequence => encodeGetLink(name, sequence),
      onMessage(view, message) {
        if (message.type === RTM_NEWLINK) found.push(decodeLink(view, message))
      },
    })
  } catch (error) {
    if (error instanceof NetlinkError && error.code === 'ENODEV') return undefined
    throw error
  }
  return found[0]
}

function encodeGetLink(name: string, sequence: number): Uint8Array {
  return encodeMessage({ type: RTM_GETLINK, flags: NLM_F_REQUEST, sequence }, out => {
    writeIfInfoMsg(out.out, 0)
    writeAttributes(out, LINK, { name })
  })
}

function decodeLink(view: ByteView, message: Message): Link {
  const span = { start: message.start + IFINFOMSG_LENGTH, end: message.end }
  return { index: readIfInfoMsg(view, message), kind: readAttributes(view, LINK, span).info?.kind }
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

/** Maximum bytes of one change. */
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
