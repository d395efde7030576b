import { append, PersistentMap } from '../base/collections.ts'
import { type Cidr, compareIps, type Ip } from '../base/ip.ts'
import { isSame } from '../base/plain-data.ts'
import type { Refusal } from './fields.ts'
import { type ApiEndpoint, type ServiceListeners, sortedEndpoints } from './reserved.ts'
import type {
  EndpointConditions,
  EndpointHints,
  EndpointPort,
  EndpointSlice,
  EndpointTraits,
  Service,
  ServiceKey,
  ServicePortSpec,
  SilentEndpoints,
  SliceList,
} from './service.ts'

/** This node, as its Node object describes it. */
export interface NodeInfo {
  readonly name: string
  /** Empty when absent. */
  readonly uid: string
  /** InternalIP then ExternalIP addresses, in the order of status.addresses; the first of a family is its primary. */
  readonly ips: readonly Ip[]
  /** Label topology.kubernetes.io/zone; empty when absent. */
  readonly zone: string
  readonly podCidrs: readonly Cidr[]
  /** Load balancers may send new connections here: it is not being deleted, nor tainted for removal (KEP-3836). */
  readonly eligible: boolean
  /** The object is deleted; this is its last version. */
  readonly deleted?: true
  readonly refusals: readonly Refusal[]
}

/** All objects of the sources at one moment. Immutable; `number` grows by one with every change. */
export interface Snapshot {
  readonly number: number
  readonly services: PersistentMap<Service>
  /** Slices by Service key. */
  readonly slices: PersistentMap<SliceList>
  /** Slices by their own key, so that a slice that moves to another Service leaves the first. */
  readonly sliceByKey: PersistentMap<EndpointSlice>
  readonly serviceCidrs: PersistentMap<readonly Cidr[]>
  readonly node: NodeInfo | undefined
  /** Addresses of this machine's interfaces, for NodePort ranges; sorted, without duplicates. */
  readonly localIps: readonly Ip[]
  /** Endpoints at which this process has dialed the API server; sorted, without duplicates. */
  readonly apiEndpoints: readonly ApiEndpoint[]
  /** Listeners by Service key; absent where no process of this node conflicts with the Service. */
  readonly listeners: PersistentMap<ServiceListeners>
  /** Endpoints that leave attempts of this node unanswered, by Service key: kprobe.io/fail-over. */
  readonly silent: PersistentMap<SilentEndpoints>
}

/**
 * An event of a source; keys are `namespace/name` (`name` for cluster-scoped kinds). A value of undefined deletes.
 * A source emits no Node object but that of its own node.
 */
export type SourceEvent =
  | { readonly kind: 'Service'; readonly key: ServiceKey; readonly value: Service | undefined }
  | { readonly kind: 'EndpointSlice'; readonly key: string; readonly value: EndpointSlice | undefined }
  | { readonly kind: 'ServiceCIDR'; readonly key: string; readonly value: readonly Cidr[] | undefined }
  | { readonly kind: 'Node'; readonly key: string; readonly value: NodeInfo | undefined }
  | { readonly kind: 'LocalIps'; readonly value: readonly Ip[] }

/** A Snapshot is made of events of sources and of what this process finds out itself. */
export type SnapshotEvent =
  | SourceEvent
  | { readonly kind: 'ApiEndpoints'; readonly value: readonly ApiEndpoint[] }
  | { readonly kind: 'Listeners'; readonly key: ServiceKey; readonly value: ServiceListeners | undefined }
  | { readonly kind: 'Silent'; readonly key: ServiceKey; readonly value: SilentEndpoints | undefined }

/** The snapshot before the first event. */
export const EMPTY_SNAPSHOT: Snapshot = {
  number: 0,
  services: PersistentMap.empty(),
  slices: PersistentMap.empty(),
  sliceByKey: PersistentMap.empty(),
  serviceCidrs: PersistentMap.empty(),
  node: undefined,
  localIps: [],
  apiEndpoints: [],
  listeners: PersistentMap.empty(),
  silent: PersistentMap.empty(),
}

/**
 * The snapshot after these events, or the same object if they change nothing. Events are states: of several for one
 * key the last counts. Cost follows the number of events.
 */
export function applyEvents(snapshot: Snapshot, events: Iterable<SnapshotEvent>): Snapshot {
  const { node, localIps, apiEndpoints } = snapshot
  const news: News = {
    services: new Map(),
    slices: new Map(),
    serviceCidrs: new Map(),
    listeners: new Map(),
    silent: new Map(),
    node,
    localIps,
    apiEndpoints,
  }
  for (const event of events) take(news, snapshot, event)
  const next: Omit<Snapshot, 'number'> = {
    slices: regrouped(snapshot, news.slices),
    services: snapshot.services.withOwn(news.services),
    sliceByKey: snapshot.sliceByKey.withOwn(news.slices),
    serviceCidrs: snapshot.serviceCidrs.withOwn(news.serviceCidrs),
    node: settled(snapshot.node, news.node),
    localIps: settled(snapshot.localIps, news.localIps),
    apiEndpoints: settled(snapshot.apiEndpoints, news.apiEndpoints),
    listeners: snapshot.listeners.withOwn(news.listeners),
    silent: snapshot.silent.withOwn(news.silent),
  }
  const before: Readonly<Record<string, unknown>> = { ...snapshot }
  const isSameSnapshot = Object.entries(next).every(([field, value]) => value === before[field])
  return isSameSnapshot ? snapshot : { ...next, number: snapshot.number + 1 }
}

/** The last value of each key in the events; where it equals the former value, that object. */
interface News {
  readonly services: Map<string, Service | undefined>
  readonly slices: Map<string, EndpointSlice | undefined>
  readonly serviceCidrs: Map<string, readonly Cidr[] | undefined>
  readonly listeners: Map<string, ServiceListeners | undefined>
  readonly silent: Map<string, SilentEndpoints | undefined>
  node: NodeInfo | undefined
  localIps: readonly Ip[]
  apiEndpoints: readonly ApiEndpoint[]
}

function take(news: News, snapshot: Snapshot, event: SnapshotEvent): void {
  switch (event.kind) {
    case 'Service':
      news.services.set(event.key, settled(snapshot.services.get(event.key), event.value))
      break
    case 'EndpointSlice':
      news.slices.set(event.key, settled(snapshot.sliceByKey.get(event.key), event.value))
      break
    case 'ServiceCIDR':
      news.serviceCidrs.set(event.key, settled(snapshot.serviceCidrs.get(event.key), event.value))
      break
    case 'Node':
      if (event.value !== undefined || news.node?.name === event.key) news.node = event.value
      break
    case 'LocalIps':
      news.localIps = [...new Set(event.value)].sort(compareIps)
      break
    case 'ApiEndpoints':
      news.apiEndpoints = sortedEndpoints(event.value)
      break
    case 'Listeners':
      news.listeners.set(event.key, settled(snapshot.listeners.get(event.key), event.value))
      break
    case 'Silent':
      news.silent.set(event.key, settled(snapshot.silent.get(event.key), event.value))
      break
  }
}

function settled<V>(before: V, now: V): V {
  return isSame(before, now) ? before : now
}

/** The slices by Service after these changes. Lists of Services that they do not touch stay the same. */
function regrouped(
  { sliceByKey, slices }: Snapshot,
  changes: ReadonlyMap<string, EndpointSlice | undefined>,
): PersistentMap<SliceList> {
  const lists = new Map<ServiceKey, EndpointSlice[]>()
  /** Gives the slices of a Service that stay as they are, and those added so far. */
  const openList = (service: ServiceKey): EndpointSlice[] => {
    const stay = ({ key }: EndpointSlice) => !changes.has(key)
    const list = lists.get(service) ?? slices.get(service)?.filter(stay) ?? []
    lists.set(service, list)
    return list
  }
  for (const [key, slice] of changes) {
    const known = sliceByKey.get(key)
    if (known !== undefined && known.service !== slice?.service) openList(known.service)
    if (slice !== undefined) openList(slice.service).push(slice)
  }
  return slices.with(
    [...lists].map(([service, list]): [ServiceKey, SliceList | undefined] => {
      const sorted = list.length === 0 ? undefined : list.toSorted((a, b) => (a.key < b.key ? -1 : 1))
      return [service, settledList(slices.get(service), sorted)]
    }),
  )
}

/** Slices that equal the former ones are the same objects. */
function settledList(before: SliceList | undefined, now: SliceList | undefined): SliceList | undefined {
  const isSameList = before?.length === now?.length && before?.every((slice, at) => slice === now?.[at])
  return isSameList ? before : now
}

/** Characters that one part of a pool holds: zone hints of 5,000 nodes in ten conditions each. */
const POOL_TEXT_MAX = 8 << 20
/** A cluster has fewer lists of ports. */
const POOL_PORTS_TEXT_MAX = 2 << 20
/** Each entry, and each name in it, counts as so many characters more. */
const ENTRY_TEXT = 64
/** Values with longer texts are hardly ever repeated. */
const VALUE_TEXT_MAX = 4_096
/** Conditions and hints of the endpoints of one node. */
const TRAITS_MAX = 16

/**
 * One copy of each value that many objects repeat: names of nodes and zones, traits of endpoints, lists of ports. Bounded
 * by what the values hold, because they stay when the objects that brought them are gone: a part that is full starts over,
 * which costs memory and nothing else.
 */
export class ValuePool {
  readonly #names = new Part<string>(POOL_TEXT_MAX)
  /** By node name. */
  readonly #traits = new Part<EndpointTraits[]>(POOL_TEXT_MAX)
  readonly #endpointPorts = new Part<readonly EndpointPort[]>(POOL_PORTS_TEXT_MAX)
  readonly #servicePorts = new Part<readonly ServicePortSpec[]>(POOL_PORTS_TEXT_MAX)

  get size(): number {
    return this.#names.values.size
  }

  name(text: string): string {
    return this.#names.shared(text, text)
  }

  /** `conditions` are compared by identity. An empty `zone` is absent. */
  traits(nodeName: string, conditions: EndpointConditions, hints: EndpointHints, zone = ''): EndpointTraits {
    const ofNode = this.#traits.values.get(nodeName)
    const same = ofNode?.find(
      known => known.conditions === conditions && (known.zone ?? '') === zone && isSame(known.hints, hints),
    )
    if (same !== undefined) return same
    const traits = { nodeName, ...(zone === '' ? {} : { zone: this.name(zone) }), conditions, hints }
    const text = [nodeName, ...(zone === '' ? [] : [zone]), ...hints.forZones, ...hints.forNodes].reduce(
      (sum, name) => sum + ENTRY_TEXT + name.length,
      0,
    )
    if ((ofNode?.length ?? 0) < TRAITS_MAX && this.#traits.makesRoom(text))
      append(this.#traits.values, nodeName, traits)
    return traits
  }

  endpointPorts(ports: readonly EndpointPort[]): readonly EndpointPort[] {
    return this.#endpointPorts.shared(keyOf(ports), ports)
  }

  /** Node ports are of one Service each. */
  servicePorts(ports: readonly ServicePortSpec[]): readonly ServicePortSpec[] {
    const isShared = ports.every(({ nodePort }) => nodePort === 0)
    return isShared ? this.#servicePorts.shared(keyOf(ports), ports) : ports
  }
}

class Part<V> {
  readonly values = new Map<string, V>()
  readonly #textMax: number
  #held = 0

  constructor(textMax: number) {
    this.#textMax = textMax
  }

  shared(key: string, value: V): V {
    const known = this.values.get(key)
    if (known !== undefined) return known
    if (this.makesRoom(ENTRY_TEXT + key.length)) this.values.set(key, value)
    return value
  }

  /** Counts an entry with so much text, for which the others may have to go; false for one that is too long. */
  makesRoom(text: number): boolean {
    if (text > VALUE_TEXT_MAX) return false
    if (this.#held + text > this.#textMax) {
      this.values.clear()
      this.#held = 0
    }
    this.#held += text
    return true
  }
}

function keyOf(ports: readonly EndpointPort[]): string {
  return ports.map(({ name, protocol, port }) => `${name}/${protocol}/${port}`).join(' ')
}

/** Computes the events that turn `before` into `now`; equal objects keep their identity. */
export function differences(before: Snapshot, now: Snapshot): readonly SourceEvent[] {
  const events: SourceEvent[] = []
  for (const key of absent(before.services, now.services))
    events.push({ kind: 'Service', key, value: undefined })
  for (const key of absent(before.sliceByKey, now.sliceByKey))
    events.push({ kind: 'EndpointSlice', key, value: undefined })
  for (const key of absent(before.serviceCidrs, now.serviceCidrs))
    events.push({ kind: 'ServiceCIDR', key, value: undefined })
  if (before.node !== undefined && now.node === undefined)
    events.push({ kind: 'Node', key: before.node.name, value: undefined })
  for (const [key, value] of now.services.entries()) events.push({ kind: 'Service', key, value })
  for (const [key, value] of now.sliceByKey.entries()) events.push({ kind: 'EndpointSlice', key, value })
  for (const [key, value] of now.serviceCidrs.entries()) events.push({ kind: 'ServiceCIDR', key, value })
  if (now.node !== undefined) events.push({ kind: 'Node', key: now.node.name, value: now.node })
  return events
}

function absent<V>(before: PersistentMap<V>, now: PersistentMap<V>): readonly string[] {
  return before.keys().filter(key => !now.has(key))
}
