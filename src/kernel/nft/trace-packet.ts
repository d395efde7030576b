import { type Ip, isLoopback } from '../../base/ip.ts'
import { type Octets, u16be, u32host, zeros } from '../../base/octets.ts'
import type { NftFamily } from './state.ts'

/** The first packet of a connection. */
export interface TracePacket {
  /** Where the packet enters: an interface, or a process of this node. */
  readonly origin: 'interface' | 'process'
  /** IPPROTO_*. */
  readonly protocol: number
  readonly source: Ip
  readonly sourcePort: number
  readonly destination: Ip
  readonly destinationPort: number
  /** For packets from an interface; without it, rules that compare the interface do not match. */
  readonly interfaceName?: string
  readonly mark?: number
}

/** Elements that packets wrote, by `family table set`, then by key; undefined for elements that packets removed. */
export type DynamicElements = ReadonlyMap<string, ReadonlyMap<Octets, Octets | undefined>>

/** A lookup in an ipset: the set's type selects which part of each side it compares. */
export interface IpsetTuple {
  /** IPPROTO_*. */
  readonly protocol: number
  /** The packet's source or destination when it reaches the rule, for each dimension of the match. */
  readonly sides: readonly { readonly ip: Ip; readonly port: number }[]
}

/** The inputs of a trace besides rules and packet. */
export interface TraceSurroundings {
  /** This node's addresses, except loopback addresses, which the tracer knows. */
  readonly localIps: ReadonlySet<Ip>
  /** Returns a whole number from 0 up to, not including, `modulus`. */
  readonly random: (modulus: number) => number
  /** Returns whether an ipset contains a packet. Rules about ipsets cannot be traced without it. */
  readonly ipsets?: (set: string, tuple: IpsetTuple) => boolean
  /**
   * Returns IPVS's decision about a packet, at LOCAL_IN and, after every nat chain, at LOCAL_OUT; undefined when IPVS
   * ignores it.
   */
  readonly balance?: (packet: BalancedPacket) => Balance | undefined
  /** Elements that are added to the ruleset's own and take precedence. */
  readonly dynamic?: DynamicElements
}

/** A packet after the first hook. */
export interface BalancedPacket {
  readonly protocol: number
  readonly source: Ip
  readonly destination: Ip
  readonly destinationPort: number
}

export interface Balance {
  /** Undefined without a real server: IPVS then answers with an ICMP port unreachable. */
  readonly to: { readonly ip: Ip; readonly port: number } | undefined
  /** For TraceStep: the virtual server, its scheduler, and its real servers. */
  readonly server: string
  readonly text: string
  readonly destinations: readonly string[]
}

/** The properties of a packet that change on its way. */
export interface PacketState {
  destination: Ip
  destinationPort: number
  mark: number
  /** 0 for every packet that enters: its earlier value is lost. */
  priority: number
  translated: boolean
  /** Set when IPVS forwarded the packet, which connection tracking's status does not show. */
  balanced: boolean
}

export function familyOfPacket(packet: TracePacket): NftFamily {
  return packet.source.length === 4 ? 'ip' : 'ip6'
}

export function isLocal(ip: Ip, surroundings: TraceSurroundings): boolean {
  return isLoopback(ip) || surroundings.localIps.has(ip)
}

/** Builds the fields of the network header that rules about addresses read; all others are zero. */
export function networkHeader(packet: TracePacket, state: PacketState): Octets {
  if (packet.source.length === 4) {
    return `\x45${zeros(8)}${String.fromCharCode(packet.protocol)}${zeros(2)}${packet.source}${state.destination}`
  }
  return `\x60${zeros(5)}${String.fromCharCode(packet.protocol)}\0${packet.source}${state.destination}`
}

/** Builds the two ports; TCP, UDP and SCTP have them at the same position. */
export function transportHeader(packet: TracePacket, state: PacketState): Octets {
  return `${u16be(packet.sourcePort)}${u16be(state.destinationPort)}${u32host(0)}`
}
