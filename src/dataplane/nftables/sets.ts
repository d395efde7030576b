import type { Octets } from '../../base/octets.ts'
import { u32host } from '../../base/octets.ts'
import { NFT_DATA_VERDICT, NFT_SET_EVAL, NFT_SET_MAP, NFT_SET_TIMEOUT } from '../../kernel/nft/constants.ts'
import {
  BYTEORDER_HOST_ENDIAN,
  concatenatedType,
  NFTNL_UDATA_SET_DATABYTEORDER,
  NFTNL_UDATA_SET_KEYBYTEORDER,
  TYPE_INET_PROTOCOL,
  TYPE_INET_SERVICE,
  TYPE_MARK,
} from '../../kernel/nft/datatypes.ts'
import type { NftSet } from '../../kernel/nft/state.ts'
import type { FamilyLayout } from '../common/family.ts'
import { plainSet, sizeToHold } from '../common/sets.ts'

export type SetName =
  | 'cluster-ips'
  | 'nodeport-ips'
  | 'hairpin'
  | 'frontends'
  | 'nodeports'
  | 'dispatch'
  | 'endpoints'
  | 'slots'
  | 'affinity'
  | 'ranges'

export const SET_NAMES: readonly SetName[] = [
  'cluster-ips',
  'nodeport-ips',
  'hairpin',
  'frontends',
  'nodeports',
  'dispatch',
  'endpoints',
  'slots',
  'affinity',
  'ranges',
]

/**
 * Sets that a packet may reach through another set read a moment before: what leaves them goes one commit later. An
 * endpoint's slot after the N that could roll it, a chain's code after the last V that holds it.
 */
export const LATE_SETS: ReadonlySet<string> = new Set<SetName>(['endpoints', 'slots', 'dispatch'])

/** Sizes of new sets at least, so that small clusters grow without a reload. */
const SIZE_MIN: Readonly<Record<SetName, number>> = {
  'cluster-ips': 1024,
  'nodeport-ips': 64,
  hairpin: 1024,
  frontends: 4096,
  nodeports: 1024,
  // Every code has room: it never grows.
  dispatch: 4096,
  endpoints: 4096,
  slots: 1024,
  // Packets fill it; when it is full, connections are served without being remembered.
  affinity: 2 ** 20,
  ranges: 1024,
}
const FULL = 0.9

/** Of affinity entries whose rule names no other: the default of Services. */
const AFFINITY_TIMEOUT_MS = 10_800_000

/** See sizeToHold. Kernels up to 6.1 ignore a new size, so growing replaces the table. */
export function sizeFor(name: SetName, count: number, before: number | undefined): number {
  return sizeToHold(count, before, { min: SIZE_MIN[name], full: FULL })
}

export interface SetDeclaration {
  readonly layout: FamilyLayout
  readonly size: number
  /** Elements of `endpoints` count the connections they were chosen for. */
  readonly connectionCounters: boolean
}

export function declareSet(name: SetName, { layout, size, connectionCounters }: SetDeclaration): NftSet {
  const { addressType: A, addressLength } = layout
  const mark = 4
  const port = 8
  switch (name) {
    case 'cluster-ips':
    case 'nodeport-ips':
      return set(name, size, [A], addressLength)
    case 'hairpin':
      return set(name, size, [A, A], 2 * addressLength)
    case 'ranges':
      return set(name, size, [TYPE_MARK, A], mark + addressLength)
    case 'frontends':
      return markMap(name, size, [A, TYPE_INET_PROTOCOL, TYPE_INET_SERVICE], addressLength + port)
    case 'nodeports':
      return markMap(name, size, [TYPE_INET_PROTOCOL, TYPE_INET_SERVICE], port)
    case 'slots':
      return markMap(name, size, [TYPE_MARK, TYPE_MARK], 2 * mark)
    case 'affinity':
      return {
        ...markMap(name, size, [TYPE_MARK, A], mark + addressLength),
        flags: NFT_SET_MAP | NFT_SET_TIMEOUT | NFT_SET_EVAL,
        timeoutMs: AFFINITY_TIMEOUT_MS,
      }
    case 'endpoints':
      return {
        ...set(name, size, [TYPE_MARK, TYPE_MARK], 2 * mark),
        flags: NFT_SET_MAP,
        dataType: concatenatedType(A, TYPE_INET_SERVICE),
        dataLength: addressLength + mark,
        ...(connectionCounters ? { counted: true as const } : {}),
      }
    case 'dispatch':
      return {
        ...set(name, size, [TYPE_MARK], mark),
        flags: NFT_SET_MAP,
        dataType: NFT_DATA_VERDICT,
        dataLength: undefined,
        // A byte order for verdicts would abort nft.
        userdata: hostOrder(NFTNL_UDATA_SET_KEYBYTEORDER),
      }
  }
}

function set(name: SetName, size: number, types: readonly number[], length: number): NftSet {
  return plainSet(name, size, { types, length })
}

function markMap(name: SetName, size: number, key: readonly number[], keyLength: number): NftSet {
  return {
    ...set(name, size, key, keyLength),
    flags: NFT_SET_MAP,
    dataType: TYPE_MARK,
    dataLength: 4,
    userdata: hostOrder(NFTNL_UDATA_SET_DATABYTEORDER),
  }
}

/** Tells nft that keys or data are numbers in host order; without it marks print byte-swapped. */
function hostOrder(type: number): Octets {
  return `${String.fromCharCode(type, 4)}${u32host(BYTEORDER_HOST_ENDIAN)}`
}
