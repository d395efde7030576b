import { Pauses, type Steps } from '../base/clock.ts'
import { PersistentMap } from '../base/collections.ts'
import type { FrontendTable, ServiceFrontends } from '../model/frontend.ts'
import type { ServiceKey } from '../model/service.ts'
import type { Snapshot } from '../model/snapshot.ts'
import { ProtobufEncoder } from '../wire/protobuf/encoder.ts'
import type { MessageOf } from '../wire/protobuf/table.ts'
import { changedAddresses, endpointKeys, endpointsOfService } from './endpoints.ts'
import { FrameEncoder } from './grpc/rpc.ts'
import { isReached, isSameMessage, type ServiceView, serviceMessage } from './objects.ts'
import { localv1 } from './schema.ts'
import {
  type ApiObject,
  type ApiRef,
  type ApiState,
  type Frame,
  type Run,
  SET_ENDPOINTS,
  SET_SERVICES,
} from './state.ts'

/** What was resolved on this node, with the Snapshot that it was resolved from. */
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
export function* objectsBeside(
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
export function touchedBetween(from: ResolvedView | undefined, to: ResolvedView): Iterable<ServiceKey> {
  if (from === undefined) return to.table.services.keys()
  return new Set([
    ...PersistentMap.changes(from.table.services, to.table.services),
    ...PersistentMap.changes(from.snapshot.services, to.snapshot.services),
    ...PersistentMap.changes(from.snapshot.slices, to.snapshot.slices),
  ])
}

/** Undefined for a Service that is not published. */
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

  /** `known` itself when it says the same: its bytes are the same exactly when the messages are. */
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
