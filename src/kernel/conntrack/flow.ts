import type { Family, Ip } from '../../base/ip.ts'
import { PROTOCOL_NUMBERS } from '../../base/ip-packet.ts'
import { type Octets, u16be as octetsOfPort } from '../../base/octets.ts'
import type { ByteView } from '../../netlink/attribute.ts'
import { nestedOctets, octets, u8, u16be, u32be, u32host, u64be } from '../../netlink/codecs.ts'
import { NLM_F_DUMP, NLM_F_REQUEST } from '../../netlink/constants.ts'
import { malformed } from '../../netlink/errors.ts'
import {
  type Batch,
  encodeMessage,
  type Message,
  nfSpan,
  readNfGenMsg,
  writeNfGenMsg,
} from '../../netlink/message.ts'
import { attributeSet, nested, readAttributes, type ValuesOf, writeAttributes } from '../../netlink/schema.ts'
import { NFPROTO_IPV4, NFPROTO_IPV6, NFPROTO_UNSPEC } from '../nft/constants.ts'

/** linux/netfilter/nfnetlink_conntrack.h and related headers, under their own names. */

const NFNL_SUBSYS_CTNETLINK = 1

export const IPCTNL_MSG_CT_NEW = 0
export const IPCTNL_MSG_CT_GET = 1
export const IPCTNL_MSG_CT_DELETE = 2
export const IPCTNL_MSG_CT_GET_STATS_CPU = 4
export const IPCTNL_MSG_CT_GET_STATS = 5

export const CTA_TUPLE_ORIG = 1
export const CTA_TUPLE_REPLY = 2

export const CTA_TUPLE_IP = 1
export const CTA_TUPLE_PROTO = 2

export const CTA_IP_V4_SRC = 1
export const CTA_IP_V4_DST = 2

export const CTA_PROTO_NUM = 1
export const CTA_PROTO_SRC_PORT = 2
export const CTA_PROTO_DST_PORT = 3

export const IPS_SEEN_REPLY = 2
export const IPS_ASSURED = 4
export const IPS_CONFIRMED = 8
export const IPS_DST_NAT = 32

export const NFNLGRP_CONNTRACK_NEW = 1
export const NFNLGRP_CONNTRACK_DESTROY = 3

/** The ctnetlink attributes that kprobe uses, as linux/netfilter/nfnetlink_conntrack.h describes them. */

const TUPLE_IP = attributeSet({
  v4Source: [CTA_IP_V4_SRC, octets],
  v4Destination: [CTA_IP_V4_DST, octets],
  v6Source: [3, octets],
  v6Destination: [4, octets],
})

const TUPLE_PROTO = attributeSet({
  number: [CTA_PROTO_NUM, u8],
  sourcePort: [CTA_PROTO_SRC_PORT, u16be],
  destinationPort: [CTA_PROTO_DST_PORT, u16be],
})

export const TUPLE = attributeSet({
  ip: [CTA_TUPLE_IP, nested(TUPLE_IP)],
  proto: [CTA_TUPLE_PROTO, nested(TUPLE_PROTO)],
  zone: [3, u16be],
})

/** The parts of the original tuple that a dump compares. */
const FILTER = attributeSet({ originalFlags: [1, u32host] })

/** The attributes that kprobe writes: entries to create, and the filters of dumps. */
export const CONNTRACK = attributeSet({
  original: [CTA_TUPLE_ORIG, nested(TUPLE)],
  reply: [CTA_TUPLE_REPLY, nested(TUPLE)],
  status: [3, u32be],
  statusMask: [26, u32be],
  timeoutS: [7, u32be],
  mark: [8, u32be],
  zone: [18, u16be],
  filter: [25, nested(FILTER)],
})

/* A dump has hundreds of thousands of entries, so the first table has only what decides whether an entry is wanted; the
   second has the fields of wanted entries. */

const HEAD_IP = attributeSet({
  v4Destination: [CTA_IP_V4_DST, octets],
  v6Destination: [4, octets],
})

const HEAD_PROTO = attributeSet({
  number: [CTA_PROTO_NUM, u8],
  destinationPort: [CTA_PROTO_DST_PORT, u16be],
})

const HEAD_TUPLE = attributeSet({
  ip: [CTA_TUPLE_IP, nested(HEAD_IP)],
  proto: [CTA_TUPLE_PROTO, nested(HEAD_PROTO)],
})

export const HEAD = attributeSet({ original: [CTA_TUPLE_ORIG, nested(HEAD_TUPLE)] })

/** The remaining fields of an entry. A deletion uses them too: it returns the original tuple unchanged. */
export const REST = attributeSet({
  tuple: [CTA_TUPLE_ORIG, nestedOctets],
  reply: [CTA_TUPLE_REPLY, nested(TUPLE)],
  status: [3, u32be],
  id: [12, u32be],
  zone: [18, u16be],
})

const COUNTERS = attributeSet({
  packets: [1, u64be],
  bytes: [2, u64be],
})

/** The fields of an entry for people: both tuples, and what the kernel counted and timed where its settings are on. */
export const RECORD = attributeSet({
  original: [CTA_TUPLE_ORIG, nested(TUPLE)],
  reply: [CTA_TUPLE_REPLY, nested(TUPLE)],
  status: [3, u32be],
  sent: [9, nested(COUNTERS)],
  received: [10, nested(COUNTERS)],
  time: [20, nested(attributeSet({ startNs: [1, u64be], stopNs: [2, u64be] }))],
})

/** The fields of an entry that show whether it was answered, and when its last packet passed. */
export const PROGRESS = attributeSet({
  status: [3, u32be],
  protocolInfo: [4, nested(attributeSet({ tcp: [1, nested(attributeSet({ state: [1, u8] }))] }))],
  timeoutS: [7, u32be],
  id: [12, u32be],
})

/** Attributes of IPCTNL_MSG_CT_GET_STATS. */
export const STATS_GLOBAL = attributeSet({
  entries: [1, u32be],
  entriesMax: [2, u32be],
})

/** Attributes of IPCTNL_MSG_CT_GET_STATS_CPU: one message per processor. */
export const STATS_CPU = attributeSet({
  insertFailed: [9, u32be],
  drop: [10, u32be],
  earlyDrop: [11, u32be],
})

/** Protocols whose flows kprobe reads. */
export type FlowProtocol = 'TCP' | 'UDP' | 'SCTP'

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
  /** The answerer has sent a packet (IPS_SEEN_REPLY). */
  readonly isAnswered: boolean
  /** A rule translated the destination (IPS_DST_NAT); IPVS and forwarders set no such bit. */
  readonly isDnat: boolean
  /** CTA_TUPLE_ORIG as the kernel wrote it: addresses, protocol, ports, and the zone of this direction if it has one. */
  readonly tuple: Octets
  /** CTA_ID: distinguishes this entry from a later one with the same tuple. */
  readonly id: number
  /** CTA_ZONE: the zone of both directions. */
  readonly zone: number | undefined
}

/** Returns an address and a port as one comparable value. */
export function socketKey(ip: Ip, port: number): Octets {
  return ip + octetsOfPort(port)
}

type FlowEnds = Pick<Flow, 'destination' | 'destinationPort' | 'answerer' | 'answererPort'>

/** Returns whether the kernel translated the destination. */
export function isTranslated(flow: FlowEnds): boolean {
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
  const { original } = readAttributes(view, HEAD, nfSpan(message))
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

/** Decodes the rest of an entry. Throws NetlinkError when it lacks a field that every entry of these protocols has. */
export function decodeFlow(
  view: ByteView,
  message: Message,
  { family, protocol, destination, destinationPort }: FlowKind & FlowHead,
): Flow {
  const { tuple, reply, status, id, zone } = readAttributes(view, REST, nfSpan(message))
  const answerer = reply?.ip?.v4Source ?? reply?.ip?.v6Source
  const answererPort = reply?.proto?.sourcePort
  if (tuple === undefined || id === undefined || answerer === undefined || answererPort === undefined)
    throw malformed('an entry of conntrack without its tuples or its id', message.start)
  const isAnswered = status === undefined || (status & IPS_SEEN_REPLY) !== 0
  return {
    family,
    protocol,
    destination,
    destinationPort,
    answerer,
    answererPort,
    isAnswered,
    isDnat: ((status ?? 0) & IPS_DST_NAT) !== 0,
    tuple,
    id,
    zone,
  }
}

export function familyNumber(family: Family): number {
  return family === 'IPv4' ? NFPROTO_IPV4 : NFPROTO_IPV6
}

/** Selects the entries of a dump: one family and protocol, and this original destination and port where given. */
export interface FlowFilter {
  readonly family: Family
  readonly protocol: FlowProtocol
  readonly destination?: Ip
  readonly destinationPort?: number
  /** Only entries with a translated destination and no answer yet; Linux before 5.15 lists the others, too. */
  readonly isHalfOpen?: boolean
}

/** CTA_FILTER_F_* of net/netfilter/nf_internals.h, which no userspace header exports. */
const CTA_FILTER_F_CTA_IP_DST = 1 << 1
const CTA_FILTER_F_CTA_PROTO_NUM = 1 << 3
const CTA_FILTER_F_CTA_PROTO_DST_PORT = 1 << 5

export function messageType(type: number): number {
  return (NFNL_SUBSYS_CTNETLINK << 8) | type
}

/** Encodes a request without attributes, as for statistics. */
export function encodeRequest(type: number, flags: number, sequence: number): Uint8Array {
  const head = { type: messageType(type), flags: NLM_F_REQUEST | flags, sequence }
  return encodeMessage(head, ({ out }) => writeNfGenMsg(out, { family: NFPROTO_UNSPEC, resourceId: 0 }))
}

/**
 * Encodes IPCTNL_MSG_CT_GET with CTA_FILTER (Linux 5.8). Older kernels compare only the family and also list the
 * other entries. The filter has no IPv6 addresses: the kernel then lists the flows whose address differs (measured on
 * 6.18).
 */
export function encodeDump(filter: FlowFilter, sequence: number): Uint8Array {
  const { family, protocol, destinationPort } = filter
  const destination = family === 'IPv4' ? filter.destination : undefined
  let flags = CTA_FILTER_F_CTA_PROTO_NUM
  if (destination !== undefined) flags |= CTA_FILTER_F_CTA_IP_DST
  if (destinationPort !== undefined) flags |= CTA_FILTER_F_CTA_PROTO_DST_PORT
  const original: ValuesOf<typeof TUPLE> = {
    ip: destination === undefined ? undefined : { v4Destination: destination },
    proto: { number: PROTOCOL_NUMBERS[protocol], destinationPort },
  }
  const head = { type: messageType(IPCTNL_MSG_CT_GET), flags: NLM_F_REQUEST | NLM_F_DUMP, sequence }
  return encodeMessage(head, out => {
    writeNfGenMsg(out.out, { family: familyNumber(family), resourceId: 0 })
    const state = filter.isHalfOpen === true ? HALF_OPEN : {}
    writeAttributes(out, CONNTRACK, { original, ...state, filter: { originalFlags: flags } })
  })
}

/** The entries of both families that a dump lists. */
export interface ReplyFilter {
  /** The answerer has sent a packet. */
  readonly isAnswered: boolean
  /** Only those whose destination a rule translated (IPS_DST_NAT). */
  readonly isDnat?: true
}

/** Encodes IPCTNL_MSG_CT_GET for these entries. Linux before 5.15 lists the others, too. */
export function encodeReplyDump({ isAnswered, isDnat }: ReplyFilter, sequence: number): Uint8Array {
  const translated = isDnat === true ? IPS_DST_NAT : 0
  const status = (isAnswered ? IPS_SEEN_REPLY : 0) | translated
  const head = { type: messageType(IPCTNL_MSG_CT_GET), flags: NLM_F_REQUEST | NLM_F_DUMP, sequence }
  return encodeMessage(head, out => {
    writeNfGenMsg(out.out, { family: NFPROTO_UNSPEC, resourceId: 0 })
    writeAttributes(out, CONNTRACK, { status, statusMask: IPS_SEEN_REPLY | translated })
  })
}

const HALF_OPEN: ValuesOf<typeof CONNTRACK> = {
  status: IPS_DST_NAT,
  statusMask: IPS_DST_NAT | IPS_SEEN_REPLY,
}

export function deleteBytesMax({ tuple }: Flow): number {
  // The headers, and what a deletion has beside the tuple.
  return 48 + tuple.length
}

/**
 * Appends IPCTNL_MSG_CT_DELETE. The tuple is always present: without one the kernel deletes every entry. With the id,
 * the kernel answers ENOENT if a later flow has the same tuple.
 */
export function writeDelete(batch: Batch<Flow>, flow: Flow): void {
  batch.open(messageType(IPCTNL_MSG_CT_DELETE))
  writeNfGenMsg(batch.out.out, { family: familyNumber(flow.family), resourceId: 0 })
  writeAttributes(batch.out, REST, { tuple: flow.tuple, id: flow.id, zone: flow.zone })
  batch.close(flow)
}
