import type { Octets } from '../../base/octets.ts'
import { IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP } from '../../kernel/nft/constants.ts'
import { concatenatedType } from '../../kernel/nft/datatypes.ts'
import { sameElement } from '../../kernel/nft/diff-elements.ts'
import type { ElementGroup, NftSet, Ruleset } from '../../kernel/nft/state.ts'
import type { PortFrontends } from '../../model/frontend.ts'
import type { Protocol } from '../../model/service.ts'

const GROUP_LENGTH_MAX = 64

/**
 * Whether a rendered group equals the present one except for the order, which the kernel chooses. The present
 * one is then kept, so that the diff skips it. Long groups are not compared here: the diff compares them.
 */
export function sameGroup(present: ElementGroup, made: ElementGroup): boolean {
  const { length } = made
  if (present.length !== length || length > GROUP_LENGTH_MAX) return false
  for (let i = 0; i < length; i++) {
    const element = made[i]
    let j = 0
    while (j < length && !sameElement(present[j], element)) j++
    if (j === length) return false
  }
  return true
}

/** The maximum length of a comment: nft keeps the length in one byte. */
const COMMENT_MAX = 250

/** Makes the comment that names the port, for nft and for later reads of the kernel. */
export function commentOf({ displayName }: PortFrontends): string {
  return displayName.length <= COMMENT_MAX ? displayName : displayName.slice(0, COMMENT_MAX)
}

/** The prefix of groups whose elements serve no single Service. Names of Services cannot begin with it. */
const SHARED = '@'

export const GROUP_NODEPORT_IPS = `${SHARED}nodeport-ips`
/** Elements in the kernel whose Service is unknown. */
export const GROUP_UNKNOWN = `${SHARED}unknown`

/** Gives the Service whose elements a group holds; undefined for a shared group. */
export function serviceOfGroup(group: string): string | undefined {
  return group.startsWith(SHARED) || group.startsWith('\0') ? undefined : group
}

/** Declares a set, not a map, whose keys are the concatenation of fields of these types. */
export function plainSet(
  name: string,
  size: number,
  key: { types: readonly number[]; length: number },
): NftSet {
  return {
    name,
    flags: 0,
    keyType: concatenatedType(...key.types),
    keyLength: key.length,
    dataType: undefined,
    dataLength: undefined,
    size,
    timeoutMs: 0,
    userdata: '',
  }
}

export const PROTOCOL_NUMBERS: Readonly<Record<Protocol, number>> = {
  TCP: IPPROTO_TCP,
  UDP: IPPROTO_UDP,
  SCTP: IPPROTO_SCTP,
}

/** Encodes protocol and port: the last 8 bytes of a frontends key, and all of a nodeports key. */
export function portKey(protocol: Protocol, port: number): Octets {
  return String.fromCharCode(PROTOCOL_NUMBERS[protocol], 0, 0, 0, port >>> 8, port & 255, 0, 0)
}

/** Gives the protocol of a key that ends in a portKey. */
export function protocolOfKey(key: Octets): Protocol | undefined {
  const number = key.charCodeAt(key.length - 8)
  if (number === PROTOCOL_NUMBERS.TCP) return 'TCP'
  if (number === PROTOCOL_NUMBERS.UDP) return 'UDP'
  return number === PROTOCOL_NUMBERS.SCTP ? 'SCTP' : undefined
}

/** Encodes a port as the second half of an endpoint: two bytes and the padding of a 32-bit register. */
export function portData(port: number): Octets {
  return String.fromCharCode(port >>> 8, port & 255, 0, 0)
}

interface Growth {
  /** The minimum size of a new set, so that small clusters grow without a replacement of the table. */
  readonly min: number
  /** The share, 0 to 1, above which a set gets a new size. */
  readonly full: number
  /** The factor by which a new set is larger than its number of elements; 2 by default. */
  readonly headroom?: number
}

const HEADROOM = 2

/**
 * Gives the size of a set of `count` elements: its present size while it is not full, otherwise a larger
 * power of two.
 */
export function sizeToHold(count: number, before: number | undefined, growth: Growth): number {
  const { min, full, headroom = HEADROOM } = growth
  if (before !== undefined && before > 0 && count <= before * full) return before
  return 2 ** Math.ceil(Math.log2(Math.max(min, count * headroom)))
}

type OfSet = (set: string) => boolean

/** Counts the elements of our own tables by the sets that contain them. */
export function elementExtent({ tables }: Ruleset, isFrontend: OfSet, isEndpoint: OfSet) {
  let frontends = 0
  let endpoints = 0
  for (const { elements } of tables)
    for (const group of elements.values())
      for (const { set } of group) {
        if (isFrontend(set)) frontends++
        else if (isEndpoint(set)) endpoints++
      }
  return { frontends, endpoints }
}
