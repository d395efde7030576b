import { PersistentMap } from '../../base/collections.ts'
import { NFT_SET_EVAL, NFT_SET_MAP, NFT_SET_TIMEOUT } from '../../kernel/nft/constants.ts'
import { PROTO_BASE_NETWORK_HDR } from '../../kernel/nft/datatypes.ts'
import type { Chain, NftFamily, NftSet, Ruleset } from '../../kernel/nft/state.ts'
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
} from '../../kernel/nft/userdata.ts'
import type { Refusal } from '../../model/fields.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import type { Forwarder, ForwarderChanges } from '../common/forwarder/forwarder.ts'
import type { FamilyLayout } from '../common/tables.ts'
import type { TransactionPlan } from '../common/transaction-plan.ts'
import {
  CLIENT_6_LENGTH,
  type Codes,
  type EndpointsMap,
  type Ids,
  isCounted,
  NO_IDS,
  type SetName,
  type Tally,
} from './layout.ts'

/** All that this plane keeps in the kernel, with the numbering that the next version continues. Immutable. */
export interface NftablesState {
  readonly ruleset: Ruleset
  /** The frontend table that it was rendered from; undefined for a state read from the kernel. */
  readonly frontends: FrontendTable | undefined
  /** The quarantined Services, which the kernel rejected. */
  readonly without: ReadonlySet<string>
  readonly allocations: Readonly<Record<NftFamily, Allocation>>
  /** Objects that did not fit and are missing from the ruleset, by Service. */
  readonly refusals: ReadonlyMap<string, readonly Refusal[]>
  /** The forwarders of this process for node ports at localhost. */
  readonly forwarders: PersistentMap<Forwarder>
}

export interface Allocation {
  readonly ids: Ids
  readonly codes: Codes
  readonly tally: Tally
  /** Undefined when the chains were read from the kernel. */
  readonly fixed: FixedChains | undefined
}

/** The chains that are not made on demand, and the skeletonKey that they were made from. */
export interface FixedChains {
  readonly key: string
  readonly chains: readonly Chain[]
}

const NO_ALLOCATION: Allocation = { ids: NO_IDS, codes: new Map(), tally: new Map(), fixed: undefined }

/** The state of a kernel in which nothing of ours exists. */
export const EMPTY_STATE: NftablesState = {
  ruleset: { tables: [] },
  frontends: undefined,
  without: new Set(),
  allocations: { ip: NO_ALLOCATION, ip6: NO_ALLOCATION },
  refusals: new Map(),
  forwarders: PersistentMap.empty(),
}

export interface NftablesPlan extends TransactionPlan<NftablesState> {
  /** Undefined when no forwarder changes. */
  readonly forwarders?: ForwarderChanges | undefined
}

interface SetDeclaration {
  readonly layout: FamilyLayout
  readonly size: number
  readonly connectionCounters: boolean
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
        // For entries whose rule names no other: the default of Services.
        timeoutMs: 10_800_000,
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
