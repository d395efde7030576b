import { NFT_SET_EVAL, NFT_SET_MAP, NFT_SET_TIMEOUT } from '../../kernel/nft/constants.ts'
import { PROTO_BASE_NETWORK_HDR } from '../../kernel/nft/datatypes.ts'
import type { NftSet } from '../../kernel/nft/state.ts'
import {
  DESTINATION,
  DESTINATION_PORT,
  DESTINATION_PORTS,
  PRIORITY,
  PROTOCOL,
  RANDOM,
  rawPayload,
  SOURCE,
  type TypeofField,
  typedSet,
} from '../../kernel/nft/typeof.ts'
import type { FamilyLayout } from '../common/family.ts'
import { sizeToHold } from '../common/sets.ts'
import { CLIENT_6_LENGTH, ENDPOINTS, ENDPOINTS_MAPS, type EndpointsMap } from './layout.ts'

export type SetName =
  | 'cluster-ips'
  | 'nodeport-ips'
  | 'hairpin'
  | 'frontends'
  | 'nodeports'
  | 'dispatch'
  | EndpointsMap
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
  'endpoints-tcp',
  'endpoints-udp',
  'endpoints-sctp',
  'slots',
  'affinity',
  'ranges',
]

/**
 * Sets that a packet may reach through another set that it read a moment before. Elements leave these sets
 * one commit later: a slot after the N that could roll it, and the code of a chain after the last V that
 * holds it.
 */
export const LATE_SETS: ReadonlySet<string> = new Set([...ENDPOINTS_MAPS, 'slots', 'dispatch'])

/** The minimum sizes of new sets, so that small clusters grow without a replacement of the table. */
const SIZE_MIN: Readonly<Record<SetName, number>> = {
  'cluster-ips': 1024,
  'nodeport-ips': 64,
  hairpin: 1024,
  frontends: 4096,
  nodeports: 1024,
  // All codes fit, so the set never grows.
  dispatch: 4096,
  'endpoints-tcp': 4096,
  'endpoints-udp': 1024,
  'endpoints-sctp': 256,
  slots: 1024,
  // Packets fill this set. When it is full, connections are served without affinity.
  affinity: 2 ** 20,
  ranges: 1024,
}
const FULL = 0.9

/** The timeout of affinity entries whose rule names no other: the default of Services. */
const AFFINITY_TIMEOUT_MS = 10_800_000

/**
 * Gives the size of a set, see sizeToHold. Kernels up to 6.1 ignore a new size, so growing replaces the
 * table.
 */
export function sizeFor(name: SetName, count: number, before: number | undefined): number {
  return sizeToHold(count, before, { min: SIZE_MIN[name], full: FULL })
}

/**
 * Whether the sets are those of nftables mode. Up to version 0.1 one map held the endpoints of all protocols.
 */
export function hasOurSets({ sets }: { readonly sets: ReadonlyMap<string, unknown> }): boolean {
  const hasEndpoints = sets.has(ENDPOINTS.TCP) || sets.has('endpoints')
  return sets.has('frontends') && sets.has('dispatch') && hasEndpoints
}

interface SetDeclaration {
  readonly layout: FamilyLayout
  readonly size: number
  /** Endpoints count the connections for which they were chosen. */
  readonly connectionCounters: boolean
}

/** Whether the kernel counts the connections of the elements of a set. */
export function isCounted(name: SetName, connectionCounters: boolean): boolean {
  return connectionCounters && ENDPOINTS_MAPS.has(name)
}

export function declareSet(name: SetName, { layout, size, connectionCounters }: SetDeclaration): NftSet {
  const { family } = layout
  const [source, destination] = [SOURCE[family], DESTINATION[family]]
  switch (name) {
    case 'cluster-ips':
    case 'nodeport-ips':
      return typedSet(name, { size, key: [destination] })
    case 'hairpin':
      return typedSet(name, { size, key: [source, destination] })
    case 'ranges':
      return typedSet(name, { size, key: [PRIORITY, source] })
    case 'frontends':
      return typedSet(name, { size, key: [destination, PROTOCOL, DESTINATION_PORT], data: [PRIORITY] })
    case 'nodeports':
      return typedSet(name, { size, key: [PROTOCOL, DESTINATION_PORT], data: [PRIORITY] })
    case 'slots':
      return typedSet(name, { size, key: [PRIORITY, RANDOM], data: [PRIORITY] })
    case 'affinity':
      return {
        ...typedSet(name, { size, key: [PRIORITY, clientField(layout)], data: [PRIORITY] }),
        flags: NFT_SET_MAP | NFT_SET_TIMEOUT | NFT_SET_EVAL,
        timeoutMs: AFFINITY_TIMEOUT_MS,
      }
    case 'endpoints-tcp':
    case 'endpoints-udp':
    case 'endpoints-sctp':
      return {
        ...typedSet(name, { size, key: [PRIORITY, RANDOM], data: [destination, PORTS[name]] }),
        ...(isCounted(name, connectionCounters) ? { counted: true as const } : {}),
      }
    case 'dispatch':
      return typedSet(name, { size, key: [PRIORITY], data: 'verdict' })
  }
}

/** The type of an endpoint's port, for each map. */
const PORTS: Readonly<Record<EndpointsMap, TypeofField>> = {
  'endpoints-tcp': DESTINATION_PORTS.TCP,
  'endpoints-udp': DESTINATION_PORTS.UDP,
  'endpoints-sctp': DESTINATION_PORTS.SCTP,
}

/** The type of the field that clientKey() loads. */
function clientField({ family, sourceOffset, addressLength }: FamilyLayout): TypeofField {
  if (family === 'ip') return SOURCE.ip
  const offset = sourceOffset + addressLength - CLIENT_6_LENGTH
  return rawPayload(PROTO_BASE_NETWORK_HDR, offset, CLIENT_6_LENGTH)
}
