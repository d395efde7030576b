import type { Ip } from '../../base/ip.ts'
import { PersistentMap } from '../../base/persistent-map.ts'
import type { Ipset, IpsetEntry } from '../../kernel/ipset/state.ts'
import type { RealServer, ServerKey, VirtualServer } from '../../kernel/ipvs/state.ts'
import type { NftFamily, Observed, Ruleset } from '../../kernel/nft/state.ts'
import type { Common } from '../../kernel/xt/scope-wanted.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import type { Refusal } from '../../model/refusal.ts'
import type { ServiceKey } from '../../model/service.ts'

/**
 * All that this plane keeps in the kernel. Immutable; versions share what did not change, so that a comparison of two
 * of one lineage walks only what did. Of the kernel's objects only those that are ours are in it.
 */
export interface IpvsState {
  /** By serverKey. */
  readonly servers: PersistentMap<PlacedServer>
  /** By name; both families. */
  readonly sets: ReadonlyMap<string, Ipset>
  /** By entryKey: the name of the set and the entry. */
  readonly entries: PersistentMap<PlacedEntry>
  /** Bound to the dummy device; by address. */
  readonly addresses: PersistentMap<PlacedAddress>
  /** The dummy device exists. */
  readonly device: boolean
  /** Our own tables `ip` and `ip6`. */
  readonly ruleset: Ruleset
  /** kube-proxy's chains in the tables of iptables. */
  readonly chains: Chains
  /** What it was rendered from; undefined for a state read from the kernel. */
  readonly frontends: FrontendTable | undefined
  /** Services left out because the kernel refused them. */
  readonly without: ReadonlySet<ServiceKey>
  /** Schedulers that were asked for and that this kernel does not have. */
  readonly missingSchedulers: ReadonlySet<string>
  /** By Service: what did not fit or was not understood; the rest of the Service is there. */
  readonly refusals: ReadonlyMap<ServiceKey, readonly Refusal[]>
  /** For the next render alone; absent from a state read from the kernel. Without it everything is rendered anew. */
  readonly rendering?: Rendering
}

/** Chains of both families and the jumps that lead to them: as they are wanted, or as they were found. */
export type Chains =
  | {
      readonly kind: 'wanted'
      /** Undefined where none are. */
      readonly common: Common | undefined
      /** Equal for equal ones. */
      readonly key: string
    }
  | { readonly kind: 'observed'; readonly observed: Observed }

export interface Rendering {
  /** Equal for surroundings by which every Service comes out the same. */
  readonly surroundings: string
  /** How much there is, by ipset. */
  readonly entries: ReadonlyMap<string, number>
  /** The same for the sets and maps of our own tables. */
  readonly elements: Readonly<Record<NftFamily, ReadonlyMap<string, number>>>
}

export interface PlacedServer {
  readonly server: VirtualServer
  /** By destinationKey, sorted; weight 0 for those that drain. */
  readonly destinations: ReadonlyMap<string, RealServer>
  /** How long those that drain may keep their connections, milliseconds; undefined for as long as usual. */
  readonly drainMs?: number | undefined
  /** Empty when read from the kernel. */
  readonly service: ServiceKey
}

export interface PlacedEntry {
  readonly set: string
  readonly entry: IpsetEntry
  /** Whom it serves; several Services may need one entry. Empty when read from the kernel. */
  readonly services: readonly ServiceKey[]
}

export interface PlacedAddress {
  readonly ip: Ip
  readonly services: readonly ServiceKey[]
}

export const EMPTY_STATE: IpvsState = {
  servers: PersistentMap.empty(),
  sets: new Map(),
  entries: PersistentMap.empty(),
  addresses: PersistentMap.empty(),
  device: false,
  ruleset: { tables: [] },
  chains: { kind: 'observed', observed: new Map() },
  frontends: undefined,
  without: new Set(),
  missingSchedulers: new Set(),
  refusals: new Map(),
}

export type { ServerKey }
