import type { Cidr } from '../base/cidr.ts'
import type { Ip } from '../base/ip.ts'
import { PersistentMap } from '../base/persistent-map.ts'
import type { EndpointSlice } from './endpoint.ts'
import type { Refusal } from './refusal.ts'
import type { Service, ServiceKey } from './service.ts'

/** This node, as its Node object describes it. */
export interface NodeInfo {
  readonly name: string
  /** InternalIP then ExternalIP addresses, in the order of status.addresses; the first of a family is its primary. */
  readonly ips: readonly Ip[]
  /** Label topology.kubernetes.io/zone; empty when absent. */
  readonly zone: string
  readonly podCidrs: readonly Cidr[]
  readonly refusals: readonly Refusal[]
}

/** Everything the sources have told, at one moment. Immutable; `number` grows by one with every change. */
export interface Snapshot {
  readonly number: number
  readonly services: PersistentMap<Service>
  /** By Service key, then by slice key. */
  readonly slices: PersistentMap<ReadonlyMap<string, EndpointSlice>>
  readonly serviceCidrs: PersistentMap<readonly Cidr[]>
  readonly node: NodeInfo | undefined
  /** Addresses of this machine's interfaces, for NodePort ranges. */
  readonly localIps: readonly Ip[]
}

/** What a source emits; keys are `namespace/name` (`name` for cluster-scoped kinds). A value of undefined deletes. */
export type SourceEvent =
  | { readonly kind: 'Service'; readonly key: ServiceKey; readonly value: Service | undefined }
  | { readonly kind: 'EndpointSlice'; readonly key: string; readonly value: EndpointSlice | undefined }
  | { readonly kind: 'ServiceCIDR'; readonly key: string; readonly value: readonly Cidr[] | undefined }
  | { readonly kind: 'Node'; readonly key: string; readonly value: NodeInfo | undefined }
  | { readonly kind: 'LocalIps'; readonly value: readonly Ip[] }

export const EMPTY_SNAPSHOT: Snapshot = {
  number: 0,
  services: PersistentMap.empty(),
  slices: PersistentMap.empty(),
  serviceCidrs: PersistentMap.empty(),
  node: undefined,
  localIps: [],
}
