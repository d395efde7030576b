import { readFileSync } from 'node:fs'
import type { Cancel, Clock } from '../../base/clock.ts'
import type { Ip } from '../../base/ip.ts'
import { type PacketHead, type PortProtocol, portProtocolOf } from '../../base/ip-packet.ts'
import type { ByteView } from '../../netlink/attribute.ts'
import { messageReceiver } from '../../netlink/batch.ts'
import type { Connection } from '../../netlink/connection.ts'
import { NLA_F_NESTED, NLA_HDRLEN, NLM_F_REQUEST, NLMSG_MIN_TYPE } from '../../netlink/constants.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import { encodeMessage, type Message, NFGENMSG_LENGTH, nfSpan, writeNfGenMsg } from '../../netlink/message.ts'
import { readAttributes, type ValuesOf, writeAttributes } from '../../netlink/schema.ts'
import type { Transport } from '../../netlink/transport.ts'
import { NFPROTO_IPV4, NFPROTO_IPV6 } from '../nft/constants.ts'
import {
  CONNTRACK,
  CTA_IP_V4_DST,
  CTA_IP_V4_SRC,
  CTA_PROTO_DST_PORT,
  CTA_PROTO_NUM,
  CTA_PROTO_SRC_PORT,
  CTA_TUPLE_IP,
  CTA_TUPLE_ORIG,
  CTA_TUPLE_PROTO,
  CTA_TUPLE_REPLY,
  IPCTNL_MSG_CT_DELETE,
  IPCTNL_MSG_CT_GET,
  IPCTNL_MSG_CT_NEW,
  IPS_SEEN_REPLY,
  messageType,
  NFNLGRP_CONNTRACK_DESTROY,
  NFNLGRP_CONNTRACK_NEW,
  PROGRESS,
  RECORD,
  type TUPLE,
} from './flow.ts'

/** A tracked connection for people: client, destination, endpoint, and traffic if the kernel counts it. */
export interface FlowRecord {
  readonly protocol: PortProtocol
  readonly client: Ip
  readonly clientPort: number
  /** Destination of the first packet. */
  readonly destination: Ip
  readonly destinationPort: number
  /** Source of the replies: the endpoint, where the destination was translated. */
  readonly answerer: Ip
  readonly answererPort: number
  /** The answerer has sent a packet. */
  readonly isAnswered: boolean
  /** Undefined unless nf_conntrack_acct is on. */
  readonly volume: Volume | undefined
  /** Nanoseconds since 1970; undefined unless nf_conntrack_timestamp is on. */
  readonly startNs: bigint | undefined
  /** Only an ended connection has it. */
  readonly stopNs: bigint | undefined
}

/** The traffic of a connection, by direction as its client sees it. */
export interface Volume {
  readonly packetsSent: number
  readonly packetsReceived: number
  readonly bytesSent: number
  readonly bytesReceived: number
}

/** Decodes an entry of a dump or an event; undefined for a protocol without ports, such as ICMP. */
export function decodeRecord(view: ByteView, message: Message): FlowRecord | undefined {
  const { original, reply, status, sent, received, time } = readAttributes(view, RECORD, nfSpan(message))
  const [asked, answer] = [headOf(original), headOf(reply)]
  const protocol = portProtocolOf(asked?.protocol)
  if (protocol === undefined || asked?.ports === undefined || answer?.ports === undefined) return undefined
  return {
    protocol,
    client: asked.source,
    clientPort: asked.ports.source,
    destination: asked.destination,
    destinationPort: asked.ports.destination,
    answerer: answer.source,
    answererPort: answer.ports.source,
    isAnswered: hasReply(status),
    volume: sent === undefined && received === undefined ? undefined : volumeOf(sent, received),
    startNs: time?.startNs,
    stopNs: time?.stopNs,
  }
}

/** Tests the status of an entry; one without a status counts as answered. */
function hasReply(status = IPS_SEEN_REPLY): boolean {
  return (status & IPS_SEEN_REPLY) !== 0
}

/** Tests whether the answerer has sent a packet, without decoding the tuples. */
export function isAnswered(view: ByteView, message: Message): boolean {
  return hasReply(readAttributes(view, PROGRESS, nfSpan(message)).status)
}

type Counters = ValuesOf<typeof RECORD>['sent']

/** Numbers are exact up to 9 PB. */
function volumeOf(sent: Counters, received: Counters): Volume {
  return {
    packetsSent: Number(sent?.packets ?? 0n),
    packetsReceived: Number(received?.packets ?? 0n),
    bytesSent: Number(sent?.bytes ?? 0n),
    bytesReceived: Number(received?.bytes ?? 0n),
  }
}

export function addedVolume(a: Volume | undefined, b: Volume): Volume {
  return {
    packetsSent: (a?.packetsSent ?? 0) + b.packetsSent,
    packetsReceived: (a?.packetsReceived ?? 0) + b.packetsReceived,
    bytesSent: (a?.bytesSent ?? 0) + b.bytesSent,
    bytesReceived: (a?.bytesReceived ?? 0) + b.bytesReceived,
  }
}

/*
 * Twenty thousand events a second leave no time for the tables of RECORD: those take 1.4 µs an event, and the octets at
 * known places 0.05 µs. ctnetlink writes the tuples of IPv4 first and always in the same way (ctnetlink_dump_tuples),
 * and every header on the way to a used octet is compared, so that anything else is left to decodeRecord.
 */

const header = (type: number, payload: number): number => (type << 16) | (NLA_HDRLEN + payload)
const nest = (type: number, payload: number): number => header(type | NLA_F_NESTED, payload) >>> 0
/** An attribute of a number or an IPv4 address, with its padding. */
const FIELD = 8
const IP_LENGTH = NLA_HDRLEN + 2 * FIELD
const PROTO_LENGTH = NLA_HDRLEN + 3 * FIELD

/** Each header of a tuple, with its offset behind the tuple's own header. */
const TUPLE_HEADERS: readonly (readonly [offset: number, word: number])[] = [
  [0, nest(CTA_TUPLE_IP, IP_LENGTH - NLA_HDRLEN)],
  [4, header(CTA_IP_V4_SRC, 4)],
  [12, header(CTA_IP_V4_DST, 4)],
  [20, nest(CTA_TUPLE_PROTO, PROTO_LENGTH - NLA_HDRLEN)],
  [24, header(CTA_PROTO_NUM, 1)],
  [32, header(CTA_PROTO_SRC_PORT, 2)],
  [40, header(CTA_PROTO_DST_PORT, 2)],
]
const TUPLE_LENGTH = IP_LENGTH + PROTO_LENGTH
const ORIGINAL = NFGENMSG_LENGTH + NLA_HDRLEN
const REPLY = ORIGINAL + TUPLE_LENGTH + NLA_HDRLEN

const HEADERS: readonly (readonly [offset: number, word: number])[] = [
  [ORIGINAL - NLA_HDRLEN, nest(CTA_TUPLE_ORIG, TUPLE_LENGTH)],
  ...TUPLE_HEADERS.map(([offset, word]) => [ORIGINAL + offset, word] as const),
  [REPLY - NLA_HDRLEN, nest(CTA_TUPLE_REPLY, TUPLE_LENGTH)],
  ...TUPLE_HEADERS.map(([offset, word]) => [REPLY + offset, word] as const),
]
const OFFSETS = HEADERS.map(([offset]) => offset)
const WORDS = HEADERS.map(([, word]) => word)

/** Tests whether the tuples of a message are where plainKey reads them: IPv4, with ports, in no zone of one direction. */
export function isPlain({ data }: ByteView, { start, end }: Message): boolean {
  if (end - start < REPLY + TUPLE_LENGTH) return false
  for (let i = 0; i < OFFSETS.length; i++)
    if (data.getUint32(start + (OFFSETS[i] ?? 0), true) !== WORDS[i]) return false
  return true
}

/** Gives a key of a plain message: protocol, original destination, source of the replies, and the ports of both. */
export function plainKey({ data }: ByteView, { start }: Message): string {
  return String.fromCharCode(
    data.getUint8(start + ORIGINAL + 28),
    data.getUint16(start + ORIGINAL + 16),
    data.getUint16(start + ORIGINAL + 18),
    data.getUint16(start + ORIGINAL + 44),
    data.getUint16(start + REPLY + 8),
    data.getUint16(start + REPLY + 10),
    data.getUint16(start + REPLY + 36),
  )
}

export type FlowEventKind = 'new' | 'ended'

const GROUPS = { new: NFNLGRP_CONNTRACK_NEW, ended: NFNLGRP_CONNTRACK_DESTROY } as const

interface FlowEventsOptions {
  /** A socket of NETLINK_NETFILTER for this alone: events would fill the queue of any other. */
  readonly transport: Transport
  readonly clock: Pick<Clock, 'after'>
  readonly kinds: readonly FlowEventKind[]
  /** Takes one event, whose bytes are valid until it returns. */
  readonly take: (kind: FlowEventKind, view: ByteView, message: Message) => void
  /** Called when the kernel dropped events because they were not read in time, or when one was unreadable. */
  readonly lost: (error: Error) => void
}

export interface FlowEvents {
  /** Reads what the kernel has queued, and leaves the groups. The socket stays open. */
  stop(): void
}

/** Bounds the time until other work of the process has its turn. */
const EVENTS_A_TURN = 4_096
/**
 * Rest between two turns while events come. Waking up for each event costs five times what reading it does. A receive
 * buffer that cannot be forced holds 300 events or more, and 10 ms of 20,000 a second are 200.
 */
const REST_MS = 10

/**
 * Reports the connections that begin and end in this network namespace (NFNLGRP_CONNTRACK_NEW and _DESTROY). With
 * net.netfilter.nf_conntrack_events at its default 2, the kernel makes events only while a program listens; with 0 it
 * makes none.
 */
export function watchFlowEvents({ transport, clock, kinds, take, lost }: FlowEventsOptions): FlowEvents {
  const groups = kinds.map(kind => GROUPS[kind])
  let cancel: Cancel | undefined
  let unwatch: (() => void) | undefined
  const receive = messageReceiver({
    transport,
    take: (view, message) => dispatch(view, message, take),
    lost,
  })
  const turn = (): void => {
    const events = receive(EVENTS_A_TURN)
    if (events > 0) cancel = clock.after(events >= EVENTS_A_TURN ? 0 : REST_MS, turn)
    else await_()
  }
  const await_ = (): void => {
    cancel = undefined
    unwatch = transport.watch(() => {
      unwatch?.()
      unwatch = undefined
      turn()
    })
  }
  for (const group of groups) transport.join(group)
  await_()
  return {
    stop() {
      cancel?.()
      unwatch?.()
      for (const group of groups) transport.leave(group)
      while (receive(EVENTS_A_TURN) >= EVENTS_A_TURN);
    },
  }
}

const NEW = messageType(IPCTNL_MSG_CT_NEW)
const DELETE = messageType(IPCTNL_MSG_CT_DELETE)

function dispatch(view: ByteView, message: Message, take: FlowEventsOptions['take']): void {
  const { type } = message
  if (type < NLMSG_MIN_TYPE) return
  if (type === NEW) take('new', view, message)
  else if (type === DELETE) take('ended', view, message)
}

/** Reads how many messages the kernel dropped at a netlink socket of this process; undefined if it reports none. */
export function droppedMessages(portId: number): number | undefined {
  let table: string
  try {
    table = readFileSync('/proc/self/net/netlink', 'utf8')
  } catch {
    return undefined
  }
  for (const line of table.split('\n')) {
    const [, protocol, id, , , , , , drops] = line.trim().split(/\s+/)
    if (protocol === '12' && Number(id) === portId) return Number(drops)
  }
  return undefined
}

/** A conntrack entry as operators read it. */
export interface Tracked {
  readonly original: PacketHead
  readonly reply: PacketHead
  /** In the words of conntrack(8). */
  readonly status: readonly string[]
  readonly timeoutS: number | undefined
  readonly mark: number
}

/** linux/netfilter/nf_conntrack_common.h, IPS_* in the order of their bits; empty for bits without a meaning for operators. */
const STATUS = [
  'expected',
  'seen-reply',
  'assured',
  'confirmed',
  'src-nat',
  'dst-nat',
  '',
  '',
  '',
  'dying',
] as const

/**
 * Finds the entry of a packet by its addresses and ports before any translation. A protocol without ports is not looked
 * up: undefined, which leaves its entry open. Synchronous. Throws NetlinkError.
 */
export function findTracked(connection: Connection, head: PacketHead): Tracked | 'none' | undefined {
  if (head.ports === undefined) return undefined
  const isIpv4 = head.source.length === 4
  const family = isIpv4 ? NFPROTO_IPV4 : NFPROTO_IPV6
  let found: Tracked | 'none' | undefined = 'none'
  try {
    connection.roundTrip({
      operation: 'read',
      object: 'conntrack entry',
      build: sequence =>
        encodeMessage({ type: messageType(IPCTNL_MSG_CT_GET), flags: NLM_F_REQUEST, sequence }, out => {
          writeNfGenMsg(out.out, { family, resourceId: 0 })
          writeAttributes(out, CONNTRACK, { original: tupleOf(head) })
        }),
      onMessage(view, message) {
        found = trackedOf(readAttributes(view, CONNTRACK, nfSpan(message)))
      },
    })
  } catch (error) {
    if (!(error instanceof NetlinkError) || error.code !== 'ENOENT') throw error
  }
  return found
}

function tupleOf({ source, destination, protocol, ports }: PacketHead): ValuesOf<typeof TUPLE> {
  const ip =
    source.length === 4
      ? { v4Source: source, v4Destination: destination }
      : { v6Source: source, v6Destination: destination }
  return {
    ip,
    proto: { number: protocol, sourcePort: ports?.source, destinationPort: ports?.destination },
  }
}

function trackedOf(values: ValuesOf<typeof CONNTRACK>): Tracked | undefined {
  const original = headOf(values.original)
  const reply = headOf(values.reply)
  if (original === undefined || reply === undefined) return undefined
  const bits = values.status ?? 0
  const status = STATUS.filter((word, bit) => word !== '' && (bits & (1 << bit)) !== 0)
  return { original, reply, status, timeoutS: values.timeoutS, mark: values.mark ?? 0 }
}

function headOf(tuple: ValuesOf<typeof TUPLE> | undefined): PacketHead | undefined {
  const source = tuple?.ip?.v4Source ?? tuple?.ip?.v6Source
  const destination = tuple?.ip?.v4Destination ?? tuple?.ip?.v6Destination
  const { number: protocol, sourcePort, destinationPort } = tuple?.proto ?? {}
  if (source === undefined || destination === undefined || protocol === undefined) return undefined
  const ports =
    sourcePort === undefined || destinationPort === undefined
      ? undefined
      : { source: sourcePort, destination: destinationPort }
  return { protocol, source, destination, ports }
}
