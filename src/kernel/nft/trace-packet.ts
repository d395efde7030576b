import { type Ip, isLoopback } from '../../base/ip.ts'
import { type Octets, u16be, u32host, zeros } from '../../base/octets.ts'
import type { NftFamily } from './state.ts'

/** The first packet of a connection. */
export interface TracePacket {
  /** Where it enters: from an interface, or from a process of this node. */
  readonly origin: 'interface' | 'process'
  /** IPPROTO_*. */
  readonly protocol: number
  readonly source: Ip
  readonly sourcePort: number
  readonly destination: Ip
  readonly destinationPort: number
  /** Of packets from an interface; rules that ask for it do not match without it. */
  readonly interfaceName?: string
  readonly mark?: number
}

/** Elements that packets wrote, by `family table set`, then by key; undefined for those they removed. */
export type DynamicElements = ReadonlyMap<string, ReadonlyMap<Octets, Octets | undefined>>

/** What an ipset is asked about: a set's type tells which part of each side it looks at. */
export interface IpsetTuple {
  /** IPPROTO_*. */
  readonly protocol: number
  /** The packet's source or destination as it is at that rule, for each dimension of the match. */
  readonly sides: readonly { readonly ip: Ip; readonly port: number }[]
}

/** What the outcome depends on besides rules and packet. */
export interface TraceSurroundings {
  /** This node's addresses, loopback ones (which are known) aside. */
  readonly localIps: ReadonlySet<Ip>
  /** A whole number from 0 up to, not including, `modulus`. */
  readonly random: (modulus: number) => number
  /** Whether an ipset has a packet. Rules about ipsets cannot be traced without it. */
  readonly ipsets?: (set: string, tuple: IpsetTuple) => boolean
  /** What IPVS does with a packet, at LOCAL_IN and, behind every nat chain, at LOCAL_OUT; undefined when it leaves it alone. */
  readonly balance?: (packet: BalancedPacket) => Balance | undefined
  /** In addition to the ruleset's own elements, which they hide. */
  readonly dynamic?: DynamicElements
}

/** A packet as it is behind the first hook. */
export interface BalancedPacket {
  readonly protocol: number
  readonly source: Ip
  readonly destination: Ip
  readonly destinationPort: number
}

export interface Balance {
  /** Undefined when there is nobody, which IPVS answers with an ICMP port unreachable. */
  readonly to: { readonly ip: Ip; readonly port: number } | undefined
  /** For TraceStep: which virtual server it was, how it chooses, and among whom. */
  readonly server: string
  readonly text: string
  readonly destinations: readonly string[]
}

/** What changes about a packet on its way. */
export interface PacketState {
  destination: Ip
  destinationPort: number
  mark: number
  /** 0 of every packet that enters: what it was is lost. */
  priority: number
  translated: boolean
  /** Sent on by IPVS, of which connection tracking's status says nothing. */
  balanced: boolean
}

export function familyOfPacket(packet: TracePacket): NftFamily {
  return packet.source.length === 4 ? 'ip' : 'ip6'
}

export function isLocal(ip: Ip, surroundings: TraceSurroundings): boolean {
  return isLoopback(ip) || surroundings.localIps.has(ip)
}

/** As much of the network header as an address-based rule can look at; all else is zero. */
export function networkHeader(packet: TracePacket, state: PacketState): Octets {
  if (packet.source.length === 4) {
    return `\x45${zeros(8)}${String.fromCharCode(packet.protocol)}${zeros(2)}${packet.source}${state.destination}`
  }
  return `\x60${zeros(5)}${String.fromCharCode(packet.protocol)}\0${packet.source}${state.destination}`
}

/** The two ports, which TCP, UDP and SCTP have in the same place. */
export function transportHeader(packet: TracePacket, state: PacketState): Octets {
  return `${u16be(packet.sourcePort)}${u16be(state.destinationPort)}${u32host(0)}`
}
