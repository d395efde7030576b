import { Pauses, type Steps } from '../base/clock.ts'
import { append, PersistentMap } from '../base/collections.ts'
import type { FrontendTable, ServiceFrontends } from '../model/frontend.ts'
import { type NodeContext, nodeContextOf, type ResolveOptions } from '../model/node-context.ts'
import { API_SERVICE } from '../model/reserved.ts'
import { type Resolved, resolve } from '../model/resolve.ts'
import type { ServiceKey, SliceList } from '../model/service.ts'
import type { NodeInfo, Snapshot } from '../model/snapshot.ts'
import { ProtobufEncoder } from '../wire/protobuf/encoder.ts'
import type { MessageOf } from '../wire/protobuf/table.ts'
import { FrameEncoder } from './grpc/rpc.ts'
import {
  changedAddresses,
  endpointKeys,
  endpointsOfService,
  isReached,
  isSameMessage,
  type ServiceView,
  serviceMessage,
} from './messages.ts'
import { localv1 } from './schema.ts'
import { isNamedIn, NO_NODE, nodesOf, resolveFor } from './shared-view.ts'
import {
  type ApiObject,
  type ApiRef,
  type ApiState,
  type Frame,
  isSameFrame,
  type OwnObjects,
  type Run,
  SET_ENDPOINTS,
  SET_SERVICES,
} from './state.ts'

/** A result of resolve() for this node, with its Snapshot. */
export interface ResolvedView {
  readonly snapshot: Snapshot
  readonly table: Pick<FrontendTable, 'services'>
}

/** A state with what it was computed from; only the newest is to be kept. */
export interface ApiProjection {
  readonly state: ApiState
  readonly resolved: ResolvedView
}

/**
 * Computes the state that back ends get. Makes only what changed since `before`: whatever is equal
 * keeps its very object, and when nothing says anything else, the state is the one from before. Of a Service that was
 * touched, each back end is compared once.
 */
export function* nextApiState(
  before: ApiProjection | undefined,
  resolved: ResolvedView,
): Steps<ApiProjection> {
  const draft = draftAfter(before)
  for (const key of touchedBetween(before?.resolved, resolved))
    yield* restate(draft, key, viewOf(resolved, key))
  if (before === undefined || draft.services.size + draft.endpoints.size > 0)
    return { state: stateAfter(draft), resolved }
  return { state: before.state, resolved }
}

/** Objects by path; undefined when deleted. */
interface ObjectChanges {
  readonly services: Map<string, ApiObject | undefined>
  readonly endpoints: Map<string, ApiObject | undefined>
}

/**
 * Computes how the objects of these Services differ from the shared ones where their frontends are others: those of a
 * node. Costs what differs, and a comparison of each back end.
 */
function* objectsBeside(
  shared: ApiProjection,
  frontends: ReadonlyMap<ServiceKey, ServiceFrontends | undefined>,
): Steps<ObjectChanges> {
  const draft = draftAfter(shared)
  for (const [key, its] of frontends) yield* restate(draft, key, viewIn(shared.resolved.snapshot, key, its))
  return draft
}

interface Draft extends ObjectChanges {
  readonly maker: ObjectMaker
  readonly before: ApiProjection | undefined
  /** Services and endpoints so far. */
  readonly pauses: Pauses
}

function draftAfter(before: ApiProjection | undefined): Draft {
  const maker = new ObjectMaker({ isWhole: before === undefined })
  return { maker, before, services: new Map(), endpoints: new Map(), pauses: new Pauses() }
}

function* restate(draft: Draft, key: ServiceKey, to: ServiceView | undefined): Steps<void> {
  const from = draft.before && viewOf(draft.before.resolved, key)
  restateService(draft, { key, from, to })
  yield* restateEndpoints(draft, { key, from, to })
  if (draft.pauses.due()) yield
}

function stateAfter({ before, maker, services, endpoints }: Draft): ApiState {
  const empty = PersistentMap.empty<ApiObject>()
  const old = before?.state
  return {
    number: (old?.number ?? 0) + 1,
    services: (old?.services ?? empty).withOwn(services),
    endpoints: (old?.endpoints ?? empty).withOwn(endpoints),
    ...(before === undefined ? { runs: maker.runs } : {}),
  }
}

/** Services whose object, whose frontends or whose slices are others. */
function touchedBetween(from: ResolvedView | undefined, to: ResolvedView): Iterable<ServiceKey> {
  if (from === undefined) return to.table.services.keys()
  return new Set([
    ...PersistentMap.changes(from.table.services, to.table.services),
    ...PersistentMap.changes(from.snapshot.services, to.snapshot.services),
    ...PersistentMap.changes(from.snapshot.slices, to.snapshot.slices),
  ])
}

function viewOf({ snapshot, table }: ResolvedView, key: ServiceKey): ServiceView | undefined {
  return viewIn(snapshot, key, table.services.get(key))
}

function viewIn(
  snapshot: Snapshot,
  key: ServiceKey,
  frontends: ServiceFrontends | undefined,
): ServiceView | undefined {
  const service = snapshot.services.get(key)
  if (service === undefined || frontends === undefined || !isReached(frontends)) return undefined
  return { service, frontends, slices: snapshot.slices.get(key) ?? [] }
}

interface Subject {
  readonly key: ServiceKey
  readonly from: ServiceView | undefined
  readonly to: ServiceView | undefined
}

function restateService({ before, maker, services }: Draft, { key, from, to }: Subject): void {
  if (to === undefined) {
    if (from !== undefined) services.set(key, undefined)
    return
  }
  if (from !== undefined && isSameMessage(from, to)) return
  const known = before?.state.services.get(key)
  const now = maker.make({ set: SET_SERVICES, path: key }, serviceMessage(to), known)
  if (now !== known) services.set(key, now)
}

function* restateEndpoints(draft: Draft, { key, from, to }: Subject): Steps<void> {
  const { before, maker, endpoints } = draft
  const only = from && to && (yield* changedAddresses(from, to))
  const gone = from === undefined ? new Set<string>() : yield* endpointKeys(from, only)
  if (to !== undefined)
    for (const [name, message] of yield* endpointsOfService(to, only)) {
      gone.delete(name)
      const path = `${key}/${name}`
      const known = before?.state.endpoints.get(path)
      const now = maker.make({ set: SET_ENDPOINTS, path }, message, known)
      if (now !== known) endpoints.set(path, now)
      if (draft.pauses.due()) yield
    }
  for (const name of gone) endpoints.set(`${key}/${name}`, undefined)
}

const SHARED_BYTES = 64 * 1024
const TABLES = { [SET_SERVICES]: localv1.Service, [SET_ENDPOINTS]: localv1.Endpoint } as const

interface GrowingRun extends Run {
  end: number
  operations: number
}

/**
 * Makes the objects of one state. In a whole state (`isWhole`) the objects of a set share memory in order, which is sent as it
 * is to a reader of all of them. Each later change has memory of its own, so that it retains no other object's.
 */
export class ObjectMaker {
  readonly #messages = new ProtobufEncoder()
  readonly #frames = new FrameEncoder()
  readonly #isWhole: boolean
  readonly #runs: Readonly<Record<ApiRef['set'], GrowingRun[]>> = { [SET_SERVICES]: [], [SET_ENDPOINTS]: [] }

  constructor({ isWhole }: { readonly isWhole: boolean }) {
    this.#isWhole = isWhole
  }

  /** The frames of a whole state: Services and then endpoints, each in the order in which they were made. */
  get runs(): readonly Run[] {
    return [...this.#runs[SET_SERVICES], ...this.#runs[SET_ENDPOINTS]]
  }

  /** Gives `known` itself if its bytes are the same, which they are exactly when the messages are. */
  make({ set, path }: ApiRef, json: MessageOf<(typeof TABLES)[ApiRef['set']]>, known?: ApiObject): ApiObject {
    const Bytes = this.#messages.encode(TABLES[set], json)
    const frame = this.#frames.encode(localv1.OpItem, { Set: { Ref: { Set: set, Path: path }, Bytes } })
    if (known !== undefined && frame.compare(known.memory, known.start, known.end) === 0) return known
    const { memory, start, end } = this.#isWhole
      ? this.#placeInRun(set, frame.length)
      : this.#placeAlone(frame.length)
    frame.copy(memory, start)
    return { path, json, memory, start, end }
  }

  #placeAlone(length: number): Frame {
    return { memory: Buffer.allocUnsafeSlow(length), start: 0, end: length }
  }

  #placeInRun(set: ApiRef['set'], length: number): Frame {
    const runs = this.#runs[set]
    const last = runs.at(-1)
    if (last === undefined || last.end + length > last.memory.length) {
      const memory = Buffer.allocUnsafeSlow(Math.max(SHARED_BYTES, length))
      runs.push({ memory, start: 0, end: length, operations: 1 })
      return { memory, start: 0, end: length }
    }
    const start = last.end
    last.end += length
    last.operations++
    return { memory: last.memory, start, end: last.end }
  }
}

interface ResolvedProjection extends ApiProjection {
  readonly resolved: Resolved
}

/** The state that nodes share now, and its differences from the previous one. */
interface SharedStep {
  readonly before: ResolvedProjection | undefined
  readonly now: ResolvedProjection
  /** Services that have changed, with the nodes from whose point of view they differ; empty at the first step. */
  readonly touched: ReadonlyMap<ServiceKey, ReadonlySet<string>>
}

/** The state that all nodes of a zone share: everything but the endpoints that are a node's own. */
export class SharedState {
  readonly #options: ResolveOptions
  readonly #node: NodeInfo
  #lender: SharedState | undefined
  step: SharedStep | undefined

  /** `node` is the point of view: see nobodyIn(). Objects that `lender` has already are not made again. */
  constructor(options: ResolveOptions, node: NodeInfo, lender?: SharedState) {
    this.#options = { ...options, nodeName: NO_NODE }
    this.#node = { ...node, name: NO_NODE }
    this.#lender = lender
  }

  *next(shared: Snapshot): Steps<void> {
    const before = this.step?.now
    if (before?.resolved.snapshot.number === shared.number) return
    const snapshot = { ...shared, node: this.#node }
    const lent = before ?? lentBy(this.#lender?.step?.now)
    const resolved = yield* resolve(this.#options, lent?.resolved, snapshot)
    const now = { state: (yield* nextApiState(lent, resolved)).state, resolved }
    const touched = new Map<ServiceKey, ReadonlySet<string>>()
    const pauses = new Pauses()
    if (before !== undefined)
      for (const key of touchedBetween(before.resolved, resolved)) {
        const slices = [before.resolved, resolved].map(
          ({ snapshot }) => snapshot.slices.get(key) ?? NO_SLICES,
        )
        touched.set(key, nodesOf(slices.flat()))
        if (pauses.due(touched.get(key)?.size)) yield
      }
    this.#lender = undefined
    this.step = { before, now, touched }
  }
}

const NO_SLICES: SliceList = []

/** Copies the maps: reading two versions of one map in turn would convert each into the other. */
function lentBy(lender: ResolvedProjection | undefined): ResolvedProjection | undefined {
  if (lender === undefined) return undefined
  const { state, resolved } = lender
  const { number, services, endpoints } = state
  return {
    state: { number, services: copyOf(services), endpoints: copyOf(endpoints) },
    resolved: {
      ...resolved,
      table: {
        ...resolved.table,
        services: copyOf(resolved.table.services),
        localBackends: PersistentMap.empty(),
      },
      memo: { ...resolved.memo, merges: PersistentMap.empty() },
    },
  }
}

function copyOf<V>(map: PersistentMap<V>): PersistentMap<V> {
  return PersistentMap.from(map.entries())
}

const NO_OBJECTS: OwnObjects = { services: PersistentMap.empty(), endpoints: PersistentMap.empty() }

/** One node's state, as a difference from that of its zone: its cost follows the Services that name the node. */
export class NodeState {
  readonly #options: ResolveOptions
  #shared: ResolvedProjection | undefined
  #node: NodeInfo | undefined
  #here: NodeContext | undefined
  #apiSlices: SliceList | undefined
  /** Paths of its own endpoints by Service: only Services that name the node have some. */
  #paths = new Map<ServiceKey, string[]>()
  /** Undefined before the first step. */
  state: ApiState | undefined

  constructor(options: ResolveOptions) {
    this.#options = options
  }

  /** Follows a step of what it shares: another SharedState where the node has moved, or its addresses matter. */
  *next({ before, now, touched }: SharedStep, node: NodeInfo | undefined): Steps<void> {
    if (this.#shared === now) return
    const isNext = before !== undefined && this.#shared === before
    const { nodeName } = this.#options
    const named = isNext
      ? [...touched].flatMap(([key, nodes]) => (nodes.has(nodeName) ? [key] : []))
      : yield* servicesNaming(nodeName, now.resolved.snapshot)
    const here = this.#hereOf(now.resolved.snapshot, node)
    if (!isNext) this.#paths = new Map()
    const known = (isNext ? this.state?.own : undefined) ?? NO_OBJECTS
    if (named.length === 0) this.#become(now, known)
    else {
      const own = yield* objectsBeside(now, yield* resolveFor(here, now.resolved, named))
      this.#become(now, this.#restated(known, named, own))
    }
    this.#shared = now
    this.#node = node
  }

  #hereOf(snapshot: Snapshot, node: NodeInfo | undefined): NodeContext {
    const apiSlices = snapshot.slices.get(API_SERVICE)
    if (this.#here === undefined || this.#node !== node || this.#apiSlices !== apiSlices)
      this.#here = nodeContextOf(this.#options, { ...snapshot, node })
    this.#apiSlices = apiSlices
    return this.#here
  }

  /** Replaces the own objects of these Services. */
  #restated(
    known: OwnObjects,
    named: readonly ServiceKey[],
    objects: { readonly [Set in keyof OwnObjects]: ReadonlyMap<string, ApiObject | undefined> },
  ): OwnObjects {
    const services = new Map<string, ApiObject | null | undefined>(named.map(key => [key, undefined]))
    const endpoints = new Map<string, ApiObject | null | undefined>()
    for (const key of named) {
      for (const path of this.#paths.get(key) ?? []) endpoints.set(path, undefined)
      this.#paths.delete(key)
    }
    const settled = (was: ApiObject | null | undefined, now: ApiObject | undefined): ApiObject | null =>
      now !== undefined && was && isSameFrame(was, now) ? was : (now ?? null)
    for (const [path, object] of objects.services)
      services.set(path, settled(known.services.get(path), object))
    for (const [path, object] of objects.endpoints) {
      endpoints.set(path, settled(known.endpoints.get(path), object))
      append(this.#paths, path.split('/', 2).join('/'), path)
    }
    return { services: known.services.withOwn(services), endpoints: known.endpoints.withOwn(endpoints) }
  }

  #become({ state: { services, endpoints } }: ResolvedProjection, own: OwnObjects): void {
    const was = this.state
    const isSame =
      was?.services === services &&
      was.endpoints === endpoints &&
      was.own?.services === own.services &&
      was.own.endpoints === own.endpoints
    if (!isSame) this.state = { number: (was?.number ?? 0) + 1, services, endpoints, own }
  }
}

function* servicesNaming(node: string, { slices }: Snapshot): Steps<readonly ServiceKey[]> {
  const keys: ServiceKey[] = []
  const pauses = new Pauses()
  for (const [key, list] of slices.entries()) {
    if (isNamedIn(list, node)) keys.push(key)
    if (pauses.due()) yield
  }
  return keys
}
