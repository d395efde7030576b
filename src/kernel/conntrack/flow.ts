import type { Family, Ip } from '../../base/ip.ts'
import { type Octets, u16be } from '../../base/octets.ts'
import type { ByteView } from '../../netlink/bytes.ts'
import { malformed } from '../../netlink/errors.ts'
import { type Message, NFGENMSG_LENGTH, readNfGenMsg } from '../../netlink/message.ts'
import { readAttributes } from '../../netlink/schema.ts'
import { NFPROTO_IPV4, NFPROTO_IPV6 } from './constants.ts'
import { HEAD, REST } from './schema.ts'

/** Protocols whose flows kprobe reads. */
export type FlowProtocol = 'TCP' | 'UDP'

/** A conntrack entry, reduced to the fields that decide about it and that a deletion needs. */
export interface Flow {
  readonly family: Family
  readonly protocol: FlowProtocol
  /** Destination of the first packet. */
  readonly destination: Ip
  readonly destinationPort: number
  /** Source of the replies: the endpoint, where the destination was translated. */
  readonly answerer: Ip
  readonly answererPort: number
  /** CTA_TUPLE_ORIG as the kernel wrote it: addresses, protocol, ports, and the zone of this direction if it has one. */
  readonly tuple: Octets
  /** CTA_ID: distinguishes this entry from a later one with the same tuple. */
  readonly id: number
  /** CTA_ZONE: the zone of both directions. */
  readonly zone: number | undefined
}

/** Returns an address and a port as one comparable value. */
export function socketKey(ip: Ip, port: number): Octets {
  return ip + u16be(port)
}

/** Returns whether the kernel translated the destination. */
export function isTranslated(flow: Flow): boolean {
  return flow.answerer !== flow.destination || flow.answererPort !== flow.destinationPort
}

/** The first fields of an entry; they decide whether to decode the rest. */
interface FlowHead {
  readonly familyNumber: number
  readonly protocolNumber: number
  /** Empty where the entry has no destination that we read. */
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

interface FlowKind {
  readonly family: Family
  readonly protocol: FlowProtocol
}

/** Decodes the rest of an entry. Throws NetlinkError when it lacks a field that every TCP and UDP entry has. */
export function decodeFlow(
  view: ByteView,
  message: Message,
  { family, protocol, destination, destinationPort }: FlowKind & FlowHead,
): Flow {
  const { tuple, reply, id, zone } = readAttributes(view, REST, spanOf(message))
  const answerer = reply?.ip?.v4Source ?? reply?.ip?.v6Source
  const answererPort = reply?.proto?.sourcePort
  if (tuple === undefined || id === undefined || answerer === undefined || answererPort === undefined)
    throw malformed('an entry of conntrack without its tuples or its id', message.start)
  return { family, protocol, destination, destinationPort, answerer, answererPort, tuple, id, zone }
}

/** Returns the attributes' part of a message. */
export function spanOf({ start, end }: Message): { readonly start: number; readonly end: number } {
  return { start: start + NFGENMSG_LENGTH, end }
}

export function familyNumber(family: Family): number {
  return family === 'IPv4' ? NFPROTO_IPV4 : NFPROTO_IPV6
}
