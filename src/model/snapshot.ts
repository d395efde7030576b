import type { Cidr } from '../base/cidr.ts'
import { compareIps, type Ip } from '../base/ip.ts'
import { PersistentMap } from '../base/persistent-map.ts'
import { finish, type Steps } from '../base/steps.ts'
import type { EndpointSlice } from './endpoint.ts'
import { isSame } from './equal.ts'
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
  /** By slice key: the Service it belongs to, so that a slice that moves leaves the old one. */
  readonly sliceOwners: PersistentMap<ServiceKey>
  readonly serviceCidrs: PersistentMap<readonly Cidr[]>
  readonly node: NodeInfo | undefined
  /** Addresses of this machine's interfaces, for NodePort ranges; sorted, without duplicates. */
  readonly localIps: readonly Ip[]
}

/**
 * What a source emits; keys are `namespace/name` (`name` for cluster-scoped kinds). A value of undefined deletes. Of
 * Node objects a source emits the one of its own node only.
 */
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
  sliceOwners: PersistentMap.empty(),
  serviceCidrs: PersistentMap.empty(),
  node: undefined,
  localIps: [],
}

/**
 * The snapshot after these events, or the same object when they say nothing new. Events are states: of several for one
 * key the last counts. Cost follows the number of events.
 */
export function applyEvents(snapshot: Snapshot, events: Iterable<SourceEvent>): Snapshot {
  return finish(applyEventsInSteps(snapshot, events))
}

/** The same with pauses: the first load of a large cluster is one set of events. */
export function* applyEventsInSteps(snapshot: Snapshot, events: Iterable<SourceEvent>): Steps<Snapshot> {
  const news = yield* collect(snapshot, events)
  const node = isSame(snapshot.node, news.node) ? snapshot.node : news.node
  const localIps = isSame(snapshot.localIps, news.localIps) ? snapshot.localIps : news.localIps
  const next = {
    services: yield* updated(snapshot.services, news.services),
    ...(yield* updatedSlices(snapshot, news.slices)),
    serviceCidrs: yield* updated(snapshot.serviceCidrs, news.serviceCidrs),
    node,
    localIps,
  }
  const isSameSnapshot =
    next.services === snapshot.services &&
    next.slices === snapshot.slices &&
    next.serviceCidrs === snapshot.serviceCidrs &&
    node === snapshot.node &&
    localIps === snapshot.localIps
  return isSameSnapshot ? snapshot : { ...next, number: snapshot.number + 1 }
}

/** Events between two offers to pause. */
const YIELD_EVERY = 2_000

/** The last word of the events on each key. */
interface News {
  readonly services: Map<string, Service | undefined>
  readonly slices: Map<string, EndpointSlice | undefined>
  readonly serviceCidrs: Map<string, readonly Cidr[] | undefined>
  node: NodeInfo | undefined
  localIps: readonly Ip[]
}

function* collect(snapshot: Snapshot, events: Iterable<SourceEvent>): Steps<News> {
  const { node, localIps } = snapshot
  const news: News = { services: new Map(), slices: new Map(), serviceCidrs: new Map(), node, localIps }
  let count = 0
  for (const event of events) {
    if (++count % YIELD_EVERY === 0) yield
    switch (event.kind) {
      case 'Service':
        news.services.set(event.key, event.value)
        break
      case 'EndpointSlice':
        news.slices.set(event.key, event.value)
        break
      case 'ServiceCIDR':
        news.serviceCidrs.set(event.key, event.value)
        break
      case 'Node':
        if (event.value !== undefined || news.node?.name === event.key) news.node = event.value
        break
      case 'LocalIps':
        news.localIps = [...new Set(event.value)].sort(compareIps)
        break
    }
  }
  return news
}

function* updated<V>(
  map: PersistentMap<V>,
  news: ReadonlyMap<string, V | undefined>,
): Steps<PersistentMap<V>> {
  const changes: [string, V | undefined][] = []
  let count = 0
  for (const [key, value] of news) {
    if (++count % YIELD_EVERY === 0) yield
    if (!isSame(map.get(key), value)) changes.push([key, value])
  }
  yield
  return changes.length === 0 ? map : map.with(changes)
}

type Slices = Map<string, EndpointSlice>

function* updatedSlices(
  snapshot: Snapshot,
  news: ReadonlyMap<string, EndpointSlice | undefined>,
): Steps<Pick<Snapshot, 'slices' | 'sliceOwners'>> {
  const changed = new Map<ServiceKey, Slices>()
  const owners: [string, ServiceKey | undefined][] = []
  let count = 0
  for (const [key, slice] of news) {
    if (++count % YIELD_EVERY === 0) yield
    const owner = snapshot.sliceOwners.get(key)
    const known = owner === undefined ? undefined : snapshot.slices.get(owner)?.get(key)
    if (isSame(known, slice)) continue
    if (owner !== undefined && owner !== slice?.service) ownCopy(changed, snapshot, owner).delete(key)
    if (slice !== undefined) ownCopy(changed, snapshot, slice.service).set(key, slice)
    if (owner !== slice?.service) owners.push([key, slice?.service])
  }
  if (changed.size === 0) return { slices: snapshot.slices, sliceOwners: snapshot.sliceOwners }
  yield
  const slices = snapshot.slices.with(withoutEmpty(changed))
  yield
  return {
    slices,
    sliceOwners: snapshot.sliceOwners.with(owners),
  }
}

/** The slices of a Service in a copy that may be changed. */
function ownCopy(copies: Map<ServiceKey, Slices>, snapshot: Snapshot, service: ServiceKey): Slices {
  const known = copies.get(service)
  if (known !== undefined) return known
  const copy = new Map(snapshot.slices.get(service))
  copies.set(service, copy)
  return copy
}

function* withoutEmpty(changed: ReadonlyMap<ServiceKey, Slices>): Iterable<[ServiceKey, Slices | undefined]> {
  for (const [service, slices] of changed) yield [service, slices.size === 0 ? undefined : slices]
}
