import { type Family, familyOf, formatIpPort, type Ip, parseIp } from '../../../../src/base/ip.ts'
import { PROTOCOL_NUMBERS } from '../../../../src/base/ip-packet.ts'
import { bytesFromOctets, octetsFromBytes } from '../../../../src/base/octets.ts'
import {
  CONNTRACK,
  type Flow,
  type FlowProtocol,
  familyNumber,
  IPCTNL_MSG_CT_NEW,
  IPS_ASSURED,
  IPS_CONFIRMED,
  IPS_SEEN_REPLY,
  messageType,
  PROGRESS,
  REST,
  TUPLE,
} from '../../../../src/kernel/conntrack/flow.ts'
import { AttributeWriter, ByteWriter, viewOf } from '../../../../src/netlink/attribute.ts'
import { octets, u16be } from '../../../../src/netlink/codecs.ts'
import {
  NLM_F_ACK,
  NLM_F_CREATE,
  NLM_F_EXCL,
  NLM_F_REQUEST,
  NLMSG_ERROR,
} from '../../../../src/netlink/constants.ts'
import {
  closeMessage,
  openMessage,
  readError,
  readMessages,
  writeNfGenMsg,
} from '../../../../src/netlink/message.ts'
import {
  attributeSet,
  nested,
  readAttributes,
  type ValuesOf,
  writeAttributes,
} from '../../../../src/netlink/schema.ts'
import type { Transport } from '../../../../src/netlink/transport.ts'

/** An entry that the kernel does not give up when room is short. */
const STATUS = IPS_CONFIRMED | IPS_ASSURED | IPS_SEEN_REPLY

/** CTA_NAT_DST of an IPv4 address and port: has the kernel translate, which no status says to it. */
const NAT_RANGE = attributeSet({
  first: [1, octets],
  last: [2, octets],
  ports: [3, nested(attributeSet({ first: [1, u16be], last: [2, u16be] }))],
})
const NAT = attributeSet({ destination: [13, nested(NAT_RANGE)] })

/** An entry to be made: `10.1.0.5:4000` sends to `10.96.0.10:53`, and `10.200.0.1:1053` answers. */
export interface Entry {
  readonly protocol: FlowProtocol
  readonly from: string
  readonly to: string
  readonly answeredBy: string
  readonly zone: number | undefined
  /** The kernel has seen no answer yet. */
  readonly isHalfOpen: boolean
  /** The kernel translates it. */
  readonly isDnat: boolean
  readonly timeoutS: number
  /** TCP_CONNTRACK_*; undefined for the state of an entry that no packet has made. */
  readonly tcpState: number | undefined
  /** CTA_ID, which the kernel gives; undefined in what is put into the kernel. */
  readonly id?: number
}

interface EntryWords {
  readonly protocol?: FlowProtocol
  readonly zone?: number
  readonly isHalfOpen?: boolean
  readonly isDnat?: boolean
  readonly timeoutS?: number
  readonly tcpState?: number
}

/** Nobody translated it when nobody else answers. */
export function entry(from: string, to: string, answeredBy = to, words: EntryWords = {}): Entry {
  const { protocol = 'UDP', zone, isHalfOpen = false, isDnat = isHalfOpen } = words
  const { timeoutS = 600, tcpState } = words
  return { protocol, from, to, answeredBy, zone, isHalfOpen, isDnat, timeoutS, tcpState }
}

/** What the kernel tells of an entry. */
export function flow(from: string, to: string, answeredBy = to, words: EntryWords = {}): Flow {
  const { protocol, zone, isHalfOpen, isDnat } = entry(from, to, answeredBy, words)
  const [client, service, endpoint] = [socket(from), socket(to), socket(answeredBy)]
  const out = new ByteWriter(128)
  writeAttributes(new AttributeWriter(out), TUPLE, tuple(client, service, protocol))
  return {
    family: familyOf(client.ip),
    protocol,
    destination: service.ip,
    destinationPort: service.port,
    answerer: endpoint.ip,
    answererPort: endpoint.port,
    isAnswered: !isHalfOpen,
    isDnat,
    tuple: octetsFromBytes(out.written()),
    id: 7,
    zone,
  }
}

export interface Socket {
  readonly ip: Ip
  readonly port: number
}

function tuple(from: Socket, to: Socket, protocol: FlowProtocol): ValuesOf<typeof TUPLE> {
  return {
    ip:
      from.ip.length === 4
        ? { v4Source: from.ip, v4Destination: to.ip }
        : { v6Source: from.ip, v6Destination: to.ip },
    proto: { number: PROTOCOL_NUMBERS[protocol], sourcePort: from.port, destinationPort: to.port },
  }
}

/** Reads `10.0.0.1:53` and `[fd00::1]:53`. */
export function socket(text: string): Socket {
  const match = /^\[?([^\]]*?)\]?:(\d+)$/.exec(text)
  const ip = parseIp(match?.[1] ?? '')
  if (ip === undefined) throw new Error(`not an address and port: ${text}`)
  return { ip, port: Number(match?.[2]) }
}

/** `UDP 10.1.0.5:4000 > 10.96.0.10:53 = 10.200.0.1:1053`. */
export function flowText({ protocol, tuple, answerer, answererPort }: Flow): string {
  const bytes = bytesFromOctets(tuple)
  const { ip, proto } = readAttributes(viewOf(bytes), TUPLE, { start: 0, end: bytes.length })
  const from = formatIpPort(ip?.v4Source ?? ip?.v6Source ?? '', proto?.sourcePort ?? 0)
  const to = formatIpPort(ip?.v4Destination ?? ip?.v6Destination ?? '', proto?.destinationPort ?? 0)
  return `${protocol} ${from} > ${to} = ${formatIpPort(answerer, answererPort)}`
}

/** The same of an entry. */
export function entryText({ protocol, from, to, answeredBy }: Entry): string {
  return `${protocol} ${from} > ${to} = ${answeredBy}`
}

/** IPCTNL_MSG_CT_NEW: an entry as if packets had made it. */
export function appendNew(
  out: ByteWriter,
  { protocol, from, to, answeredBy, zone, isHalfOpen, isDnat, timeoutS, tcpState, id }: Entry,
  sequence: number,
): void {
  const [client, service, endpoint] = [socket(from), socket(to), socket(answeredBy)]
  const family: Family = familyOf(client.ip)
  const flags = NLM_F_REQUEST | NLM_F_CREATE | NLM_F_EXCL | NLM_F_ACK
  const start = openMessage(out, { type: messageType(IPCTNL_MSG_CT_NEW), flags, sequence })
  writeNfGenMsg(out, { family: familyNumber(family), resourceId: 0 })
  const original = tuple(client, service, protocol)
  const reply = tuple(isDnat ? service : endpoint, client, protocol)
  const status = isHalfOpen ? IPS_CONFIRMED : STATUS
  const attributes = new AttributeWriter(out)
  writeAttributes(attributes, CONNTRACK, { original, reply, status, timeoutS, zone })
  if (id !== undefined) writeAttributes(attributes, REST, { id })
  if (tcpState !== undefined)
    writeAttributes(attributes, PROGRESS, { protocolInfo: { tcp: { state: tcpState } } })
  if (isDnat) {
    const [ip, port] = [endpoint.ip, endpoint.port]
    const ports = { first: port, last: port }
    writeAttributes(attributes, NAT, { destination: { first: ip, last: ip, ports } })
  }
  closeMessage(out, start)
}

const ENTRIES_A_SEND = 500

/** Puts entries into this network namespace's connection tracking; gives how many the kernel took. */
export function inject(transport: Transport, entries: Iterable<Entry>): number {
  const into = new Uint8Array(1 << 17)
  let [taken, waiting] = [0, 0]
  let out = new ByteWriter(1 << 16)
  const send = (): void => {
    if (waiting > 0) transport.sendSync(out.written())
    for (let length = transport.receive(into); length !== undefined; length = transport.receive(into))
      taken += accepted(into.subarray(0, length))
    waiting = 0
    out = new ByteWriter(1 << 16)
  }
  for (const each of entries) {
    appendNew(out, each, 1)
    if (++waiting === ENTRIES_A_SEND) send()
  }
  send()
  return taken
}

/** Acknowledgements of success in a datagram. */
function accepted(bytes: Uint8Array): number {
  const view = viewOf(bytes)
  return readMessages(view).filter(each => each.type === NLMSG_ERROR && readError(view, each).errno === 0)
    .length
}
