import { assert } from '../../base/errors.ts'
import { type Ip, isLoopback } from '../../base/ip.ts'
import { type Octets, readU16be, readU32host, u16be, u32host, zeros } from '../../base/octets.ts'
import {
  IPS_DST_NAT,
  NFPROTO_IPV4,
  NFPROTO_IPV6,
  NFT_CT_STATUS,
  NFT_META_IIFNAME,
  NFT_META_L4PROTO,
  NFT_META_MARK,
  NFT_META_NFPROTO,
  NFT_META_PRIORITY,
  NFT_PAYLOAD_NETWORK_HEADER,
  NFT_PAYLOAD_TRANSPORT_HEADER,
  NFTA_FIB_F_SADDR,
  RTN_LOCAL,
} from './constants.ts'
import type { NftFamily } from './state.ts'
import {
  type Effect,
  type Known,
  type Machine,
  newRegisters,
  type Of,
  type SetAccess,
} from '../evaluate/machine.ts'

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
  /** Receives word that nothing follows from the last number: its rule ended without effect. */
  readonly forget?: () => void
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
function networkHeader(packet: TracePacket, state: PacketState): Octets {
  if (packet.source.length === 4) {
    return `\x45${zeros(8)}${String.fromCharCode(packet.protocol)}${zeros(2)}${packet.source}${state.destination}`
  }
  return `\x60${zeros(5)}${String.fromCharCode(packet.protocol)}\0${packet.source}${state.destination}`
}

/** Builds the two ports; TCP, UDP and SCTP have them at the same position. */
function transportHeader(packet: TracePacket, state: PacketState): Octets {
  return `${u16be(packet.sourcePort)}${u16be(state.destinationPort)}${u32host(0)}`
}

interface PacketAt {
  readonly packet: TracePacket
  readonly state: PacketState
  readonly surroundings: TraceSurroundings
  readonly sets: SetAccess
  /** Empty without an input interface. */
  readonly interfaceName: string
}

/** A single packet at one rule. */
export class PacketMachine implements Machine {
  readonly registers = newRegisters()
  readonly sets: SetAccess
  readonly addressLength: number
  readonly #at: PacketAt

  constructor(at: PacketAt) {
    this.sets = at.sets
    this.addressLength = at.packet.source.length
    this.#at = at
  }

  header(base: number, offset: number, length: number): Octets | undefined {
    const { packet, state } = this.#at
    const isNetwork = base === NFT_PAYLOAD_NETWORK_HEADER
    assert(isNetwork || base === NFT_PAYLOAD_TRANSPORT_HEADER, `cannot trace payload base ${base}`)
    const header = isNetwork ? networkHeader(packet, state) : transportHeader(packet, state)
    const data = header.slice(offset, offset + length)
    return data.length === length ? data : undefined
  }

  meta(key: number): Octets {
    const { packet, state, interfaceName } = this.#at
    switch (key) {
      case NFT_META_MARK:
        return u32host(state.mark)
      case NFT_META_PRIORITY:
        return u32host(state.priority)
      case NFT_META_L4PROTO:
        return u32host(packet.protocol)
      case NFT_META_NFPROTO:
        return u32host(packet.source.length === 4 ? NFPROTO_IPV4 : NFPROTO_IPV6)
      case NFT_META_IIFNAME:
        return interfaceName.padEnd(16, '\0')
      default:
        throw new Error(`cannot trace meta key ${key}`)
    }
  }

  setMeta(key: number, value: Known): void {
    const { state } = this.#at
    assert(typeof value === 'string', 'a single packet has one mark')
    if (key === NFT_META_MARK) state.mark = readU32host(value)
    else {
      assert(key === NFT_META_PRIORITY, `cannot trace writing meta key ${key}`)
      state.priority = readU32host(value)
    }
  }

  conntrack(key: number): Octets {
    assert(key === NFT_CT_STATUS, `cannot trace conntrack key ${key}`)
    return u32host(this.#at.state.translated ? IPS_DST_NAT : 0)
  }

  /** Returns RTN_LOCAL for a local address, and RTN_UNICAST for others: the tracer has no routing table. */
  addressType(flags: number): Octets {
    const { packet, state, surroundings } = this.#at
    const ip = (flags & NFTA_FIB_F_SADDR) !== 0 ? packet.source : state.destination
    return u32host(isLocal(ip, surroundings) ? RTN_LOCAL : RTN_UNICAST)
  }

  random(modulus: number): number {
    return this.#at.surroundings.random(modulus)
  }

  matchIpset({ set, dimensions, inverted }: Of<'ipset'>): Effect {
    const { packet, state, surroundings } = this.#at
    const { ipsets } = surroundings
    assert(ipsets !== undefined, `the entries of ipset ${set} are unknown`)
    const source = { ip: packet.source, port: packet.sourcePort }
    const destination = { ip: state.destination, port: state.destinationPort }
    const sides = dimensions.map(dimension => (dimension === 'src' ? source : destination))
    return ipsets(set, { protocol: packet.protocol, sides }) === inverted ? 'break' : 'next'
  }

  translate(destination: Known, port: Known | undefined): Effect {
    const { state } = this.#at
    assert(typeof destination === 'string', 'a single packet has one destination')
    state.destination = destination
    if (typeof port === 'string') state.destinationPort = readU16be(port)
    state.translated = true
    return { kind: 'dnat' }
  }
}

const RTN_UNICAST = 1
