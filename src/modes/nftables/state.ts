import { PersistentMap } from '../../base/persistent-map.ts'
import type { Chain, NftFamily, Ruleset } from '../../kernel/nft/state.ts'
import type { Refusal } from '../../model/fields.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import type { Relay, RelayChanges } from '../common/relay/relay.ts'
import type { TransactionPlan } from '../common/transaction.ts'
import { type Codes, type Ids, NO_IDS, NOTHING, type Tally } from './numbering.ts'

/** All that this plane keeps in the kernel, with the numbering that the next version continues. Immutable. */
export interface NftablesState {
  /** The tables `ip` and `ip6`. */
  readonly ruleset: Ruleset
  /** The frontend table that it was rendered from; undefined for a state read from the kernel. */
  readonly frontends: FrontendTable | undefined
  /** The quarantined Services, which the kernel rejected. */
  readonly without: ReadonlySet<string>
  readonly allocations: Readonly<Record<NftFamily, Allocation>>
  /** What did not fit and is missing from the ruleset, by Service. */
  readonly refusals: ReadonlyMap<string, readonly Refusal[]>
  /** The relays of this process for node ports at localhost. */
  readonly relays: PersistentMap<Relay>
}

/** The numbering of one table. */
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

const NO_ALLOCATION: Allocation = { ids: NO_IDS, codes: new Map(), tally: NOTHING, fixed: undefined }

/** The state of a kernel in which nothing of ours exists. */
export const EMPTY_STATE: NftablesState = {
  ruleset: { tables: [] },
  frontends: undefined,
  without: new Set(),
  allocations: { ip: NO_ALLOCATION, ip6: NO_ALLOCATION },
  refusals: new Map(),
  relays: PersistentMap.empty(),
}

export interface NftablesPlan extends TransactionPlan<NftablesState> {
  readonly relays: RelayChanges
}
