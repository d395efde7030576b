import type { Family } from '../../base/ip.ts'
import { type Octets, readU32host } from '../../base/octets.ts'
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

/** Further groups of elements that serve no single Service. */
export const GROUP_DISPATCH = '@dispatch'
export const GROUP_AFFINITY = '@affinity'
export const GROUP_UNKNOWN = '@unknown'
const GROUP_HAIRPIN = '@hairpin/'

export function hairpinGroup(address: string): string {
  return GROUP_HAIRPIN + address
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
