import { NFT_DATA_VERDICT, NFT_SET_MAP } from '../../kernel/nft/constants.ts'
import { concatenatedType, TYPE_INET_PROTOCOL, TYPE_INET_SERVICE } from '../../kernel/nft/datatypes.ts'
import type { NftSet } from '../../kernel/nft/state.ts'
import type { FamilyLayout } from '../common/family.ts'
import { plainSet } from '../common/sets.ts'

/** Maps whose data is the address and port of a listener. */
export type RedirectMap = 'frontends' | 'inside' | 'nodeports' | 'nodeports-inside'
export const REDIRECT_MAPS: ReadonlySet<string> = new Set<RedirectMap>([
  'frontends',
  'inside',
  'nodeports',
  'nodeports-inside',
])

/** What every table has; beside them `ranges-N` for each length N of source ranges that is in use. */
export type FixedSetName =
  | RedirectMap
  | 'verdicts'
  | 'nodeport-verdicts'
  | 'guarded'
  | 'cluster-ips'
  | 'nodeport-ips'
  | 'listeners'

export const FIXED_SETS: readonly FixedSetName[] = [
  'cluster-ips',
  'nodeport-ips',
  'guarded',
  'verdicts',
  'nodeport-verdicts',
  'inside',
  'nodeports-inside',
  'frontends',
  'nodeports',
  'listeners',
]

/** The set of source ranges of one length. */
export function rangesSet(bits: number): string {
  return `ranges-${bits}`
}

/** The length of the ranges in a set; undefined for a set of something else. */
export function rangeBits(set: string): number | undefined {
  const match = /^ranges-(\d+)$/.exec(set)
  return match === null ? undefined : Number(match[1])
}

/** Sets have no size of their own: the kernel lets them grow, so that none is ever made anew. */
const SIZE = 0

export function declareFixedSet(name: FixedSetName, layout: FamilyLayout): NftSet {
  const { addressType, addressLength } = layout
  const place = { types: [addressType, TYPE_INET_PROTOCOL, TYPE_INET_SERVICE], length: addressLength + 8 }
  const nodePort = { types: [TYPE_INET_PROTOCOL, TYPE_INET_SERVICE], length: 8 }
  const redirects = {
    flags: NFT_SET_MAP,
    dataType: concatenatedType(addressType, TYPE_INET_SERVICE),
    dataLength: addressLength + 4,
  }
  const verdicts = { flags: NFT_SET_MAP, dataType: NFT_DATA_VERDICT }
  switch (name) {
    case 'cluster-ips':
    case 'nodeport-ips':
      return plainSet(name, SIZE, { types: [addressType], length: addressLength })
    case 'guarded':
    case 'listeners':
      return plainSet(name, SIZE, place)
    case 'verdicts':
      return { ...plainSet(name, SIZE, place), ...verdicts }
    case 'nodeport-verdicts':
      return { ...plainSet(name, SIZE, nodePort), ...verdicts }
    case 'frontends':
    case 'inside':
      return { ...plainSet(name, SIZE, place), ...redirects }
    case 'nodeports':
    case 'nodeports-inside':
      return { ...plainSet(name, SIZE, nodePort), ...redirects }
  }
}

export function declareRanges(bits: number, layout: FamilyLayout): NftSet {
  const { addressType: A, addressLength } = layout
  return plainSet(rangesSet(bits), SIZE, {
    types: [A, TYPE_INET_PROTOCOL, TYPE_INET_SERVICE, A],
    length: 2 * addressLength + 8,
  })
}

export const CHAIN_NODE_PORTS = 'node-ports'
export const CHAIN_INPUT = 'filter-input'

/** Beside a place that leads to the endpoints of this node alone: `ns/web:http local`. */
export const LOCAL_SUFFIX = ' local'

export const GROUP_UNKNOWN = '@unknown'
