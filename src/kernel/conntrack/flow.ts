import type { Family, Ip } from '../../base/ip.ts'
import { type Octets, u16be } from '../../base/octets.ts'
import type { ByteView } from '../../netlink/bytes.ts'
import { malformed } from '../../netlink/errors.ts'
import { type Message, NFGENMSG_LENGTH, readNfGenMsg } from '../../netlink/message.ts'
import { readAttributes, type ValuesOf } from '../../netlink/schema.ts'
import { NFPROTO_IPV4, NFPROTO_IPV6 } from './constants.ts'
import { CONNTRACK, HEAD, type TUPLE } from './schema.ts'

/** Protocols whose flows anyone here asks about. */
export type FlowProtocol = 'TCP' | 'UDP'

/** One direction of a flow, as its packets have it when they arrive. */
export interface FlowTuple {
  readonly source: Ip
  readonly destination: Ip
  readonly sourcePort: number
  readonly destinationPort: number
  /** CTA_TUPLE_ZONE: a zone of this direction alone. */
  readonly zone: number | undefined
}

/** What connection tracking remembers of one connection, as IPCTNL_MSG_CT_GET tells it. */
export interface Flow {
  readonly family: Family
  readonly protocol: FlowProtocol
  readonly original: FlowTuple
  /** Its source is who answers: the endpoint, where the destination was translated. */
  readonly reply: FlowTuple
  /** IPS_*. */
  readonly status: number
  /** CTA_ID: tells this entry from a later one with the same addresses and ports. */
  readonly id: number
  readonly timeoutS: number
  /** CTA_ZONE: of both directions. */
  readonly zone: number | undefined
}

/** An address and a port as one value that compares. */
export function socketKey(ip: Ip, port: number): Octets {
  return ip + u16be(port)
}

/** Whether packets go on to somewhere else than where they were sent. */
export function isTranslated({ original, reply }: Flow): boolean {
  return reply.source !== original.destination || reply.sourcePort !== original.destinationPort
}

/** As much of an entry as tells whether the rest is worth decoding. */
export interface FlowHead {
  readonly familyNumber: number
  readonly protocolNumber: number
  /** Empty where the entry has none that we read. */
  readonly destination: Ip
  readonly destinationPort: number
}

export function decodeHead(view: ByteView, message: Message): FlowHead {
  const { family } = readNfGenMsg(view, message)
  const { original } = readAttributes(view, HEAD, spanOf(message))
  const ip = original?.ip
  return {
    familyNumber: family,
    protocolNumber: original?.proto?.number ?? -1,
    destination: ip?.v4Destination ?? ip?.v6Destination ?? '',
    destinationPort: original?.proto?.destinationPort ?? 0,
  }
}

/** The whole entry. Throws NetlinkError when it lacks what every entry of TCP and UDP has. */
export function decodeFlow(
  view: ByteView,
  message: Message,
  what: { readonly family: Family; readonly protocol: FlowProtocol },
): Flow {
  const { original, reply, status, id, timeoutS, zone } = readAttributes(view, CONNTRACK, spanOf(message))
  if (id === undefined) throw malformed('an entry of conntrack without its id', message.start)
  return {
    ...what,
    original: decodeTuple(original, message),
    reply: decodeTuple(reply, message),
    status: status ?? 0,
    id,
    timeoutS: timeoutS ?? 0,
    zone,
  }
}

function decodeTuple(tuple: ValuesOf<typeof TUPLE> | undefined, message: Message): FlowTuple {
  const { ip, proto } = tuple ?? {}
  const source = ip?.v4Source ?? ip?.v6Source
  const destination = ip?.v4Destination ?? ip?.v6Destination
  const sourcePort = proto?.sourcePort
  const destinationPort = proto?.destinationPort
  if (
    source === undefined ||
    destination === undefined ||
    sourcePort === undefined ||
    destinationPort === undefined
  )
    throw malformed('an entry of conntrack without its addresses or ports', message.start)
  return { source, destination, sourcePort, destinationPort, zone: tuple?.zone }
}

function spanOf({ start, end }: Message): { readonly start: number; readonly end: number } {
  return { start: start + NFGENMSG_LENGTH, end }
}

export function familyNumber(family: Family): number {
  return family === 'IPv4' ? NFPROTO_IPV4 : NFPROTO_IPV6
}
