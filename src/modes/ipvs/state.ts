import { PersistentMap } from '../../base/collections.ts'
import type { Ip } from '../../base/ip.ts'
import type { Ipset, IpsetEntry } from '../../kernel/ipset/state.ts'
import type { RealServer, VirtualServer } from '../../kernel/ipvs/state.ts'
import type { NftFamily, Observed, Ruleset } from '../../kernel/nft/state.ts'
import type { FixedRules } from '../../kernel/xt/scope.ts'
import type { Refusal } from '../../model/fields.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import type { ServiceKey } from '../../model/service.ts'

/**
 * All that this plane keeps in the kernel. Immutable. Versions share unchanged parts, so that a comparison of
 * two versions of one lineage visits only changed parts. It contains only objects that are ours.
 */
export interface IpvsState {
  /** Servers by serverKey. */
  readonly servers: PersistentMap<PlacedServer>
  /** Sets of both families, by name. */
  readonly sets: ReadonlyMap<string, Ipset>
  /** Entries by entryKey: the name of the set and the entry. */
  readonly entries: PersistentMap<PlacedEntry>
  /** Addresses bound to the dummy device, by address. */
  readonly addresses: PersistentMap<PlacedAddress>
  /** The dummy device exists. */
  readonly device: boolean
  /** Our own tables `ip` and `ip6`. */
  readonly ruleset: Ruleset
  /** kube-proxy's chains in the tables of iptables. */
  readonly chains: Chains
  /** The frontend table that it was rendered from; undefined for a state read from the kernel. */
  readonly frontends: FrontendTable | undefined
  /** The quarantined Services, which the kernel rejected. */
  readonly without: ReadonlySet<ServiceKey>
  /** Schedulers that Services configure and this kernel lacks. */
  readonly missingSchedulers: ReadonlySet<string>
  /** Objects that did not fit or were not understood, by Service. The rest of the Service is served. */
  readonly refusals: ReadonlyMap<ServiceKey, readonly Refusal[]>
  /** Data for the next render alone; without it, as after a read, everything is rendered again. */
  readonly rendering?: Rendering
}

/** The chains of both families and the jumps that lead to them: wanted or observed. */
export type Chains =
  | {
      readonly kind: 'wanted'
      /** Undefined where no chains are wanted. */
      readonly fixed: FixedRules | undefined
      /** Equal for equal chains. */
      readonly key: string
    }
  | { readonly kind: 'observed'; readonly observed: Observed }

export interface Rendering {
  /** Equal for surroundings in which every Service renders to the same state. */
  readonly surroundings: string
  readonly entries: ReadonlyMap<string, number>
  /** Number of elements by set and map of our own tables. */
  readonly elements: Readonly<Record<NftFamily, ReadonlyMap<string, number>>>
}

export interface PlacedServer {
  readonly server: VirtualServer
  /** Real servers by destinationKey, sorted; weight 0 for those that drain. */
  readonly destinations: ReadonlyMap<string, RealServer>
  /** Maximum time that draining real servers keep their connections, milliseconds; undefined for the default. */
  readonly drainMs?: number | undefined
  /** The Service; empty when read from the kernel. */
  readonly service: ServiceKey
  /** PortFrontends.key of the port that it serves; empty when read from the kernel. */
  readonly port: string
}

export interface PlacedEntry {
  readonly set: string
  readonly entry: IpsetEntry
  /** The Services that it serves; several Services may need one entry. Empty when read from the kernel. */
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
