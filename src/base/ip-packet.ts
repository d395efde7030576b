import { formatIp, formatIpPort, type Ip } from './ip.ts'
import { type Octets, readU16be } from './octets.ts'

export type PortProtocol = 'TCP' | 'UDP' | 'SCTP'
/** IPPROTO_* of the protocols that Services and virtual servers have. */
export const PROTOCOL_NUMBERS: Readonly<Record<PortProtocol, number>> = {
  TCP: 6,
  UDP: 17,
  SCTP: 132,
}

/** The protocol of a number; undefined for a protocol that no Service has. */
export function portProtocolOf(number: number | undefined): PortProtocol | undefined {
  if (number === PROTOCOL_NUMBERS.TCP) return 'TCP'
  if (number === PROTOCOL_NUMBERS.UDP) return 'UDP'
  return number === PROTOCOL_NUMBERS.SCTP ? 'SCTP' : undefined
}

export interface PacketHead {
  /** IPPROTO_*. */
  readonly protocol: number
  readonly source: Ip
  readonly destination: Ip
  /** Undefined for protocols without ports, and where the octets end before them. */
  readonly ports: { readonly source: number; readonly destination: number } | undefined
}

const WITH_PORTS: ReadonlySet<number> = new Set(Object.values(PROTOCOL_NUMBERS))
const NAMES: ReadonlyMap<number, string> = new Map([
  [1, 'ICMP'],
  [58, 'ICMPv6'],
  ...Object.entries(PROTOCOL_NUMBERS).map(([name, number]) => [number, name] as const),
])
const IPV4_LENGTH = 20
const IPV6_LENGTH = 40
/** Hop-by-hop options, routing, fragment and destination options of IPv6. */
const EXTENSIONS: ReadonlySet<number> = new Set([0, 43, 44, 60])
const FRAGMENT = 44
const FRAGMENT_LENGTH = 8
const EXTENSIONS_MAX = 8

/**
 * Reads the head of a packet from its first octets. Without `transport`, the transport header follows the network header.
 * Undefined for anything else than IPv4 or IPv6, and where the octets end before the addresses do.
 */
export function readPacketHead(network: Octets, transport?: Octets): PacketHead | undefined {
  const version = network.charCodeAt(0) >> 4
  if (version === 4 && network.length >= IPV4_LENGTH) {
    const protocol = network.charCodeAt(9)
    const isFirst = (readU16be(network, 6) & 0x1fff) === 0
    const behind = transport ?? network.slice((network.charCodeAt(0) & 15) * 4)
    const ports = isFirst ? portsOf(protocol, behind) : undefined
    return { protocol, source: network.slice(12, 16), destination: network.slice(16, 20), ports }
  }
  if (version !== 6 || network.length < IPV6_LENGTH) return undefined
  const { protocol, at, isFirst } = upperLayer(network)
  const ports = isFirst ? portsOf(protocol, transport ?? network.slice(at)) : undefined
  return { protocol, source: network.slice(8, 24), destination: network.slice(24, 40), ports }
}

/** Skips the extension headers of IPv6, as far as there are octets. */
function upperLayer(network: Octets) {
  let protocol = network.charCodeAt(6)
  let at = IPV6_LENGTH
  let isFirst = true
  for (let headers = 0; headers < EXTENSIONS_MAX && EXTENSIONS.has(protocol); headers++) {
    if (network.length < at + FRAGMENT_LENGTH) return { protocol, at, isFirst: false }
    const isFragment = protocol === FRAGMENT
    if (isFragment) isFirst &&= (readU16be(network, at + 2) & 0xfff8) === 0
    protocol = network.charCodeAt(at)
    at += isFragment ? FRAGMENT_LENGTH : (network.charCodeAt(at + 1) + 1) * 8
  }
  return { protocol, at, isFirst }
}

function portsOf(protocol: number, transport: Octets): PacketHead['ports'] {
  if (!WITH_PORTS.has(protocol) || transport.length < 4) return undefined
  return { source: readU16be(transport), destination: readU16be(transport, 2) }
}

/** `TCP`; `protocol 47` for one without a name here. */
export function protocolText(protocol: number): string {
  return NAMES.get(protocol) ?? `protocol ${protocol}`
}

/** `10.0.0.1:80`; the address alone where there are no ports. */
export function endText(head: PacketHead, side: 'source' | 'destination'): string {
  const ip = head[side]
  return head.ports === undefined ? formatIp(ip) : formatIpPort(ip, head.ports[side])
}
