import type { Family } from '../../base/ip.ts'
import { type Octets, readU32host } from '../../base/octets.ts'
import {
  ICMP_PORT_UNREACH,
  ICMPV6_PORT_UNREACH,
  IPPROTO_SCTP,
  IPPROTO_TCP,
  IPPROTO_UDP,
  NFPROTO_IPV4,
  NFPROTO_IPV6,
} from '../../kernel/nft/constants.ts'
import { TYPE_IP6ADDR, TYPE_IPADDR } from '../../kernel/nft/datatypes.ts'
import type { NftFamily } from '../../kernel/nft/state.ts'
import type { Protocol } from '../../model/service.ts'

/**
 * The value V of a frontend, a 32-bit number that nft prints as a mark:
 *
 *     bits 31..13  service-port id (1 to 524,287)
 *     bit  12      0 in the map; 1 makes it the list of endpoints on this node
 *     bits 11..0   code: key of the map `dispatch`
 */
const ID_SHIFT = 13
export const ID_UNIT = 2 ** ID_SHIFT
export const ID_MAX = 0x7ffff
export const ID_MASK = 0xffffe000
export const LOCAL_LIST = 0x1000
export const CODE_MASK = 0xfff
export const CODE_REJECT = 0
export const CODE_DROP = 1
/** Codes of chains made on demand run from here to CODE_MASK. */
export const CODE_FIRST = 16

/** Second half of an endpoints key: slots lie below, stable ids of endpoints (session affinity) from here on. */
export const STABLE_ID = 0x80000000

export const CHAIN_PREROUTING = 'nat-prerouting'
export const CHAIN_OUTPUT = 'nat-output'
export const CHAIN_POSTROUTING = 'nat-postrouting'
export const CHAIN_SERVICES = 'services'
export const CHAIN_REJECT = 'reject'
export const CHAIN_FIREWALL = 'firewall-check'

/** Groups of elements that serve no single Service. Names of Services cannot begin so. */
export const GROUP_NODEPORT_IPS = '@nodeport-ips'
export const GROUP_DISPATCH = '@dispatch'
export const GROUP_AFFINITY = '@affinity'
export const GROUP_UNKNOWN = '@unknown'
const GROUP_HAIRPIN = '@hairpin/'

export function hairpinGroup(address: string): string {
  return GROUP_HAIRPIN + address
}

/** The Service whose elements a group holds; undefined when it is shared by all. */
export function serviceOfGroup(group: string): string | undefined {
  return group.startsWith('@') || group.startsWith('\0') ? undefined : group
}

/** What differs between the two tables. */
export interface FamilyLayout {
  readonly family: NftFamily
  readonly model: Family
  readonly nfproto: number
  /** Bytes. */
  readonly addressLength: number
  /** 32-bit registers that an address takes. */
  readonly addressRegs: number
  readonly addressType: number
  /** Offsets in the network header. */
  readonly sourceOffset: number
  readonly destinationOffset: number
  readonly rejectCode: number
}

const IPV4: FamilyLayout = {
  family: 'ip',
  model: 'IPv4',
  nfproto: NFPROTO_IPV4,
  addressLength: 4,
  addressRegs: 1,
  addressType: TYPE_IPADDR,
  sourceOffset: 12,
  destinationOffset: 16,
  rejectCode: ICMP_PORT_UNREACH,
}

const IPV6: FamilyLayout = {
  family: 'ip6',
  model: 'IPv6',
  nfproto: NFPROTO_IPV6,
  addressLength: 16,
  addressRegs: 4,
  addressType: TYPE_IP6ADDR,
  sourceOffset: 8,
  destinationOffset: 24,
  rejectCode: ICMPV6_PORT_UNREACH,
}

export const LAYOUTS: Readonly<Record<NftFamily, FamilyLayout>> = { ip: IPV4, ip6: IPV6 }
export const NFT_FAMILIES: readonly NftFamily[] = ['ip', 'ip6']

const PROTOCOL_NUMBERS: Readonly<Record<Protocol, number>> = {
  TCP: IPPROTO_TCP,
  UDP: IPPROTO_UDP,
  SCTP: IPPROTO_SCTP,
}

/** Protocol and port as the last 8 bytes of a frontends key, and all of a nodeports key. */
export function portKey(protocol: Protocol, port: number): Octets {
  return String.fromCharCode(PROTOCOL_NUMBERS[protocol], 0, 0, 0, port >>> 8, port & 255, 0, 0)
}

/** The protocol of a key that ends in portKey. */
export function protocolOfKey(key: Octets): Protocol | undefined {
  const number = key.charCodeAt(key.length - 8)
  if (number === PROTOCOL_NUMBERS.TCP) return 'TCP'
  if (number === PROTOCOL_NUMBERS.UDP) return 'UDP'
  return number === PROTOCOL_NUMBERS.SCTP ? 'SCTP' : undefined
}

/** A port as the second half of an endpoint: two bytes and the padding of a 32-bit register. */
export function portData(port: number): Octets {
  return String.fromCharCode(port >>> 8, port & 255, 0, 0)
}

/** Two 32-bit numbers in host order: keys of endpoints and slots. */
export function pairKey(a: number, b: number): Octets {
  return String.fromCharCode(
    a & 255,
    (a >>> 8) & 255,
    (a >>> 16) & 255,
    (a >>> 24) & 255,
    b & 255,
    (b >>> 8) & 255,
    (b >>> 16) & 255,
    (b >>> 24) & 255,
  )
}

/** The service-port id in the first 32 bits of a value or key. */
export function idOf(octets: Octets): number {
  return readU32host(octets) >>> ID_SHIFT
}

/** PortFrontends.key of the port that has this name beside its frontends. */
export function portKeyOf(displayName: string, protocol: Protocol, family: Family): string {
  const name = displayName.includes(':') ? displayName : `${displayName}:`
  return `${name}/${protocol}/${family}`
}

/** `length` bytes of which the first `bits` bits are set. */
export function prefixMask(bits: number, length: number): Octets {
  let mask = ''
  for (let left = bits; mask.length < length; left -= 8) {
    mask += String.fromCharCode(left >= 8 ? 255 : left <= 0 ? 0 : (0xff00 >>> left) & 255)
  }
  return mask
}
