import type { Family } from '../../base/ip.ts'
import { type Octets, readU32host, u32host } from '../../base/octets.ts'
import type { Protocol } from '../../model/service.ts'

/**
 * The value V of a frontend, a 32-bit number that travels in the priority of the connection's first packet, where nft
 * prints it as two halves:
 *
 *     bit  31      1: chain early-postrouting knows V by it
 *     bits 30..13  service-port id (1 to 262,143)
 *     bit  12      0 in the map; 1 makes it the list of endpoints on this node
 *     bits 11..0   code: key of the map `dispatch`
 *
 * With session affinity bits 12..0 become the number of the endpoint that was chosen.
 */
export const VALUE_FLAG = 0x80000000
const ID_SHIFT = 13
const ID_UNIT = 2 ** ID_SHIFT
export const ID_MAX = 0x3ffff
/** Clears the low bits of V and leaves the flag set. */
export const ID_MASK = 0xffffe000
export const LOCAL_LIST = 0x1000
export const CODE_MASK = 0xfff
export const CODE_REJECT = 0
export const CODE_DROP = 1
/** Codes of chains made on demand range from this value to CODE_MASK. */
export const CODE_FIRST = 16

/**
 * The maximum number of endpoints of one service port that can have numbers of their own (session affinity).
 */
export const STABLE_MAX = ID_UNIT
/**
 * The second half of an endpoint key. Values below it are slots. From this value on, the first half is the
 * number of the endpoint.
 */
export const STABLE = 0x80000000
/** The same for endpoints on this node. */
export const STABLE_LOCAL = STABLE + 1

/** The number of bytes of an IPv6 address, counted from its end, that identify a client in `affinity`. */
export const CLIENT_6_LENGTH = 12

/** Groups of elements that serve no single Service. */
export const GROUP_DISPATCH = '@dispatch'
export const GROUP_AFFINITY = '@affinity'
export const GROUP_UNKNOWN = '@unknown'
const GROUP_HAIRPIN = '@hairpin/'

export function hairpinGroup(address: string): string {
  return GROUP_HAIRPIN + address
}

/** Gives the cluster list of a service port: its V without a code. */
export function listOfPort(id: number): number {
  return VALUE_FLAG + id * ID_UNIT
}

export type EndpointsMap = 'endpoints-tcp' | 'endpoints-udp' | 'endpoints-sctp'

/**
 * One map for each protocol: nft treats the port in the map's data as a port of one protocol, and requires
 * each rule to name it.
 */
export const ENDPOINTS: Readonly<Record<Protocol, EndpointsMap>> = {
  TCP: 'endpoints-tcp',
  UDP: 'endpoints-udp',
  SCTP: 'endpoints-sctp',
}
export const ENDPOINTS_MAPS: ReadonlySet<string> = new Set(Object.values(ENDPOINTS))

/**
 * Makes a key of `slots`: a list and a slot. A key of the endpoints has the same form, or is the number of an
 * endpoint with STABLE or STABLE_LOCAL.
 */
export function pairKey(first: number, second: number): Octets {
  return u32host(first) + u32host(second)
}

/**
 * Gives the list of a pairKey, and its slot; the slot is undefined where the key has the number of an
 * endpoint.
 */
export function readPairKey(key: Octets): { readonly list: number; readonly slot: number | undefined } {
  const first = readU32host(key)
  const second = readU32host(key, 4)
  if (second < STABLE) return { list: first, slot: second }
  return { list: ((first & ID_MASK) >>> 0) + (second === STABLE ? 0 : LOCAL_LIST), slot: undefined }
}

/** Gives the service-port id in the first 32 bits of a value or key. */
export function idOf(octets: Octets): number {
  return (readU32host(octets) >>> ID_SHIFT) & ID_MAX
}

/** Gives the PortFrontends.key of the port with this display name. */
export function portKeyOf(displayName: string, protocol: Protocol, family: Family): string {
  const name = displayName.includes(':') ? displayName : `${displayName}:`
  return `${name}/${protocol}/${family}`
}
