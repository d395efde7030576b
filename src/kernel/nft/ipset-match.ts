import { type Octets, zeros } from '../../base/octets.ts'
import { errnoNumber, NetlinkError, unencodable } from '../../netlink/errors.ts'
import { IPSET_DIM_MAX, IPSET_DIM_ONE_SRC, IPSET_INV_MATCH } from './constants.ts'
import type { Expression } from './state.ts'

export type IpsetMatch = Extract<Expression, { readonly kind: 'ipset' }>

/** Returns the number of a set, by which rules refer to it; undefined for a name without a set. */
export type IndexOfIpset = (name: string) => number | undefined
export type NameOfIpset = (index: number) => string | undefined

/** The attributes of nft_compat's expression `match`; the names are those of net/netfilter/xt_set.c. */
interface MatchAttributes {
  readonly name?: string | undefined
  readonly revision?: number | undefined
  readonly info?: Octets | undefined
}

const MATCH_NAME = 'set'
/** Since Linux 3.19. */
const REVISION = 4
/**
 * struct xt_set_info_match_v4 of linux/netfilter/xt_set.h: index (16 bits), number of dimensions and flags; then
 * conditions on counters with flags of their own, which are all zero here.
 */
const INFO_LENGTH = 48
const HEAD_LENGTH = 4
const NO_CONDITIONS = zeros(INFO_LENGTH - HEAD_LENGTH)

/**
 * Encodes the match with the set's number. The rule has no l4proto (NFTA_RULE_COMPAT), because the match needs none.
 * Throws NetlinkError: ENOENT for a set without a number.
 */
export function matchAttributesOf(
  { set, dimensions, inverted }: IpsetMatch,
  indexOf: IndexOfIpset | undefined,
): { readonly name: string; readonly revision: number; readonly info: Octets } {
  const index = indexOf?.(set)
  if (index === undefined) throw missingIpset(set)
  const { length } = dimensions
  if (length === 0 || length > IPSET_DIM_MAX) throw unencodable(`a match of ${length} dimensions of ${set}`)
  const flags = dimensions.reduce(
    (flags, dimension, i) => (dimension === 'src' ? flags | (IPSET_DIM_ONE_SRC << i) : flags),
    inverted ? IPSET_INV_MATCH : 0,
  )
  const head = String.fromCharCode(index & 0xff, index >> 8, length, flags)
  return { name: MATCH_NAME, revision: REVISION, info: head + NO_CONDITIONS }
}

function missingIpset(set: string): NetlinkError {
  return new NetlinkError({
    operation: 'match',
    object: `ipset ${set}`,
    errno: errnoNumber('ENOENT'),
    extendedAck: 'there is no such set',
  })
}

/**
 * Decodes the match; undefined for other matches and revisions, and for options that our expression lacks. A set
 * without a known name is called by its number, `[ipset 7]`, which equals no wanted set.
 */
export function ipsetMatchOf(
  { name, revision, info = '' }: MatchAttributes,
  nameOf: NameOfIpset | undefined,
): IpsetMatch | undefined {
  if (name !== MATCH_NAME || revision !== REVISION || info.length !== INFO_LENGTH) return undefined
  if (info.slice(HEAD_LENGTH) !== NO_CONDITIONS) return undefined
  const index = info.charCodeAt(0) | (info.charCodeAt(1) << 8)
  const count = info.charCodeAt(2)
  const flags = info.charCodeAt(3)
  if (count === 0 || count > IPSET_DIM_MAX || flags >= IPSET_DIM_ONE_SRC << count) return undefined
  const dimensions = Array.from({ length: count }, (_, i) =>
    (flags & (IPSET_DIM_ONE_SRC << i)) === 0 ? 'dst' : 'src',
  )
  const set = nameOf?.(index) ?? `[ipset ${index}]`
  return { kind: 'ipset', set, dimensions, inverted: (flags & IPSET_INV_MATCH) !== 0 }
}

/**
 * Maps names of ipsets of this network namespace to the numbers that the kernel's rules have. A number stays with its
 * name when two sets are swapped, and with its set while a rule refers to it.
 */
export interface IpsetNames {
  /** Throws NetlinkError or SystemError when the lookup fails. */
  readonly indexOf: IndexOfIpset
  readonly nameOf: NameOfIpset
}
