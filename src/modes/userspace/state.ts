import type { Family, Ip } from '../../base/ip.ts'
import type { Octets } from '../../base/octets.ts'
import { PersistentMap } from '../../base/persistent-map.ts'
import type { NftFamily, Ruleset } from '../../kernel/nft/state.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import type { Refusal } from '../../model/refusal.ts'
import type { ServiceKey } from '../../model/service.ts'
import type { Relay } from './relay.ts'

/** All that this plane keeps, in the kernel and in this process. Immutable. */
export interface UserspaceState {
  /** Tables `ip` and `ip6`, with symbols for the addresses and ports of listeners: see symbols.ts. */
  readonly ruleset: Ruleset
  /** The relays of this process, by RelayKey. */
  readonly relays: PersistentMap<Relay>
  /** The addresses and ports that the rules catch: address and portKey, or portKey alone. Empty when read. */
  readonly places: PersistentMap<ServiceKey>
  /** The addresses on which the relays of each family listen. */
  readonly addresses: Readonly<Record<Family, Ip | undefined>>
  /** The frontend table that it was rendered from; undefined for a state read from the kernel. */
  readonly frontends: FrontendTable | undefined
  /** The quarantined Services. */
  readonly without: ReadonlySet<ServiceKey>
  readonly tallies: Readonly<Record<NftFamily, TableTally>>
  /** What this mode does not support, by Service. */
  readonly refusals: ReadonlyMap<ServiceKey, readonly Refusal[]>
}

export interface TableTally {
  /** The number of source ranges in use, by length. */
  readonly ranges: ReadonlyMap<number, number>
  /** The ruleInputsKey of the chains; undefined when they were read from the kernel. */
  readonly chains: string | undefined
}

export const NO_TALLY: TableTally = { ranges: new Map(), chains: undefined }

/** A state with nothing in the kernel and nothing in the process. */
export const EMPTY_STATE: UserspaceState = {
  ruleset: { tables: [] },
  relays: PersistentMap.empty(),
  places: PersistentMap.empty(),
  addresses: { IPv4: undefined, IPv6: undefined },
  frontends: undefined,
  without: new Set(),
  tallies: { ip: NO_TALLY, ip6: NO_TALLY },
  refusals: new Map(),
}

/** A key of UserspaceState.places. */
export type PlaceKey = Octets
