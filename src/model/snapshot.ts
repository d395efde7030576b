import { append, PersistentMap } from '../base/collections.ts'
import { type Cidr, compareIps, type Ip } from '../base/ip.ts'
import { isSame, type Refusal } from './fields.ts'
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
}

/**
 * The snapshot after these events, or the same object if they change nothing. Events are states: of several for one
 * key the last counts. Cost follows the number of events.
 */
export function applyEvents(snapshot: Snapshot, events: Iterable<SnapshotEvent>): Snapshot {
  const news = collect(snapshot, events)
  const next = {
    slices: regrouped({ before: snapshot.sliceByKey, changes: news.slices, groups: snapshot.slices }),
    services: snapshot.services.withOwn(news.services),
    sliceByKey: snapshot.sliceByKey.withOwn(news.slices),
    serviceCidrs: snapshot.serviceCidrs.withOwn(news.serviceCidrs),
    node: isSame(snapshot.node, news.node) ? snapshot.node : news.node,
    localIps: isSame(snapshot.localIps, news.localIps) ? snapshot.localIps : news.localIps,
    apiEndpoints: isSame(snapshot.apiEndpoints, news.apiEndpoints)
      ? snapshot.apiEndpoints
      : news.apiEndpoints,
    listeners: snapshot.listeners.withOwn(news.listeners),
  }
  const isSameSnapshot =
    next.services === snapshot.services &&
    next.sliceByKey === snapshot.sliceByKey &&
    next.serviceCidrs === snapshot.serviceCidrs &&
    next.node === snapshot.node &&
    next.localIps === snapshot.localIps &&
    next.apiEndpoints === snapshot.apiEndpoints &&
    next.listeners === snapshot.listeners
  return isSameSnapshot ? snapshot : { ...next, number: snapshot.number + 1 }
}

/** The last value of each key in the events; where it equals the former value, that object. */
interface News {
  readonly services: Map<string, Service | undefined>
  readonly slices: Map<string, EndpointSlice | undefined>
  readonly serviceCidrs: Map<string, readonly Cidr[] | undefined>
  readonly listeners: Map<string, ServiceListeners | undefined>
  node: NodeInfo | undefined
  localIps: readonly Ip[]
  apiEndpoints: readonly ApiEndpoint[]
}

function collect(snapshot: Snapshot, events: Iterable<SnapshotEvent>): News {
  const { node, localIps, apiEndpoints } = snapshot
  const news: News = {
    services: new Map(),
    slices: new Map(),
    serviceCidrs: new Map(),
    listeners: new Map(),
    node,
    localIps,
    apiEndpoints,
  }
  for (const event of events) take(news, snapshot, event)
  return news
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
  }
}

function settled<V>(before: V | undefined, now: V | undefined): V | undefined {
  return before !== undefined && now !== undefined && isSame(before, now) ? before : now
}

interface SliceChange {
  /** All slices, by slice key, before the change. */
  readonly before: PersistentMap<EndpointSlice>
  /** The changed slices by key: the former value when it is equal, undefined when the slice is deleted. */
  readonly changes: ReadonlyMap<string, EndpointSlice | undefined>
  /** Slices by Service key, before the change. */
  readonly groups: PersistentMap<SliceList>
}

/** The slices by Service after a change. Lists of Services that it does not touch stay the same. */
function regrouped(change: SliceChange): PersistentMap<SliceList> {
  if (change.changes.size === 0) return change.groups
  const draft: Draft = { ...change, lists: new Map(), open: new Set() }
  for (const [key, slice] of change.changes) restate(draft, key, slice)
  for (const service of draft.open) {
    const list = draft.lists.get(service) ?? []
    draft.lists.set(service, list.length === 0 ? undefined : list.toSorted(bySliceKey))
  }
  return change.groups.withOwn(draft.lists)
}

interface Draft extends SliceChange {
  readonly lists: Map<ServiceKey, EndpointSlice[] | undefined>
  /** Services whose list is not in its last form: it may be empty, in disorder, or have room for more. */
  readonly open: Set<ServiceKey>
}

function restate(draft: Draft, key: string, slice: EndpointSlice | undefined): void {
  const known = draft.before.get(key)
  if (known === slice) return
  if (known !== undefined && known.service !== slice?.service) openList(draft, known.service)
  if (slice === undefined) return
  const { service } = slice
  // Most Services have one slice, and most slices are met for the first time.
  if (draft.lists.get(service) === undefined && draft.groups.get(service) === undefined)
    draft.lists.set(service, [slice])
  else openList(draft, service).push(slice)
}

/** The slices of a Service that stay as they are, and those added so far. */
function openList(draft: Draft, service: ServiceKey): EndpointSlice[] {
  const { lists, groups, changes, open } = draft
  open.add(service)
  const started = lists.get(service)
  if (started !== undefined) return started
  const before = groups.get(service) ?? []
  const list = before.filter(slice => !changes.has(slice.key) || changes.get(slice.key) === slice)
  lists.set(service, list)
  return list
}

function bySliceKey(a: EndpointSlice, b: EndpointSlice): number {
  return a.key < b.key ? -1 : 1
}

/** Maximum number of entries in one part of a pool. An entry with long text counts as several. */
const ROOM = 65_536
/** Lists of ports are larger, and a cluster has fewer of them. */
const PORTS_ROOM = 16_384
/** Text that takes the room of an entry. */
const ENTRY_TEXT = 64
/** The text of a hint takes this much beside its name. */
const HINT_TEXT = 32
/** Larger values are hardly ever repeated. */
const ENTRY_ROOM_MAX = 64
/** Conditions and hints of the endpoints of one node. */
const TRAITS_MAX = 16
/** Longer lists are hardly ever repeated. */
const PORTS_MAX = 8

/**
 * One copy of each value that many objects repeat: names of nodes and zones, traits of endpoints, lists of ports. Bounded
 * by what the values hold, because they stay when the objects that brought them are gone: a part that is full starts over,
 * which costs memory and nothing else.
 */
export class ValuePool {
  readonly #names = new Part<string>(ROOM)
  /** By node name. */
  readonly #traits = new Part<EndpointTraits[]>(ROOM)
  readonly #endpointPorts = new Part<readonly EndpointPort[]>(PORTS_ROOM)
  readonly #servicePorts = new Part<readonly ServicePortSpec[]>(PORTS_ROOM)

  get size(): number {
    return this.#names.values.size
  }

  name(text: string): string {
    return text === '' ? text : shared(this.#names, text, text)
  }

  /** `conditions` are compared by identity. */
  traits(nodeName: string, conditions: EndpointConditions, hints: EndpointHints): EndpointTraits {
    const ofNode = this.#traits.values.get(nodeName)
    const same = ofNode?.find(known => known.conditions === conditions && isSame(known.hints, hints))
    if (same !== undefined) return same
    const traits = { nodeName, conditions, hints }
    if (ofNode === undefined || ofNode.length < TRAITS_MAX) this.#addTraits(traits)
    return traits
  }

  #addTraits(traits: EndpointTraits): void {
    if (this.#traits.makesRoom(textOf(traits))) append(this.#traits.values, traits.nodeName, traits)
  }

  endpointPorts(ports: readonly EndpointPort[]): readonly EndpointPort[] {
    return isShort(ports) ? shared(this.#endpointPorts, keyOf(ports), ports) : ports
  }

  /** Node ports are of one Service each. */
  servicePorts(ports: readonly ServicePortSpec[]): readonly ServicePortSpec[] {
    const isShared = isShort(ports) && ports.every(({ nodePort }) => nodePort === 0)
    return isShared ? shared(this.#servicePorts, keyOf(ports), ports) : ports
  }
}

class Part<V> {
  readonly values = new Map<string, V>()
  readonly #room: number
  #held = 0

  constructor(room: number) {
    this.#room = room
  }

  /** Counts an entry with so much text, for which the others may have to go; false for one that is too long. */
  makesRoom(text: number): boolean {
    const needed = 1 + Math.floor(text / ENTRY_TEXT)
    if (needed > ENTRY_ROOM_MAX) return false
    if (this.#held + needed > this.#room) {
      this.values.clear()
      this.#held = 0
    }
    this.#held += needed
    return true
  }
}

function shared<V>(part: Part<V>, key: string, value: V): V {
  const known = part.values.get(key)
  if (known !== undefined) return known
  if (part.makesRoom(key.length)) part.values.set(key, value)
  return value
}

function textOf({ nodeName, hints: { forZones, forNodes } }: EndpointTraits): number {
  let length = nodeName.length
  for (const name of forZones) length += HINT_TEXT + name.length
  for (const name of forNodes) length += HINT_TEXT + name.length
  return length
}

function isShort({ length }: readonly EndpointPort[]): boolean {
  return length > 0 && length <= PORTS_MAX
}

function keyOf(ports: readonly EndpointPort[]): string {
  let key = ''
  for (const { name, protocol, port } of ports) key += `${name}/${protocol}/${port} `
  return key
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
