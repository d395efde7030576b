import { Slice, type Slicing } from '../base/clock.ts'
import { PersistentMap } from '../base/collections.ts'
import type { FrontendTable, ServiceFrontends } from '../model/frontend.ts'
import type { ServiceKey } from '../model/service.ts'
import type { Snapshot } from '../model/snapshot.ts'
import { changedAddresses, endpointKeys, endpointMessages } from './endpoint-messages.ts'
import { ObjectMaker } from './object-maker.ts'
import { isSameMessage, serviceMessage } from './service-message.ts'
import { isReached, type ServiceView } from './service-view.ts'
import { type ApiObject, type ApiState, SET_ENDPOINTS, SET_SERVICES } from './state.ts'

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
 * Computes the state that back ends get. Makes only what changed since `before`: an equal object stays, and
 * so does the whole state. Each back end of a Service that was touched is compared once. Pauses between objects.
 */
export async function nextApiState(
  before: ApiProjection | undefined,
  resolved: ResolvedView,
  slicing: Slicing,
): Promise<ApiProjection> {
  const draft = new StateDraft(before)
  const slice = new Slice(slicing)
  for (const [key, view] of touchedViews(before?.resolved, resolved))
    for (const _ of draft.restate(key, view)) if (slice.isOver) await slice.next()
  return draft.projectionOf(resolved)
}

/** The objects of Services that differ from those of `before`, by path; undefined where one is gone. */
export class StateDraft {
  readonly services = new Map<string, ApiObject | undefined>()
  readonly endpoints = new Map<string, ApiObject | undefined>()
  readonly #before: ApiProjection | undefined
  readonly #maker: ObjectMaker

  constructor(before: ApiProjection | undefined) {
    this.#before = before
    this.#maker = new ObjectMaker({ isWhole: before === undefined })
  }

  /** Makes the objects of a Service one after the other, and gives their paths: take them all. */
  *restate(key: ServiceKey, to: ServiceView | undefined): Iterable<string> {
    const from = this.#before && viewOf(this.#before.resolved, key)
    this.#restateService(key, from, to)
    yield key
    const only = from && to && changedAddresses(from, to)
    const gone = from === undefined ? new Set<string>() : endpointKeys(from, only)
    for (const [name, message] of to === undefined ? [] : endpointMessages(to, only)) {
      gone.delete(name)
      const path = `${key}/${name}`
      const known = this.#before?.state.endpoints.get(path)
      const now = this.#maker.make({ set: SET_ENDPOINTS, path }, message, known)
      if (now !== known) this.endpoints.set(path, now)
      yield path
    }
    for (const name of gone) this.endpoints.set(`${key}/${name}`, undefined)
  }

  #restateService(key: ServiceKey, from: ServiceView | undefined, to: ServiceView | undefined): void {
    if (to === undefined) {
      if (from !== undefined) this.services.set(key, undefined)
      return
    }
    if (from !== undefined && isSameMessage(from, to)) return
    const known = this.#before?.state.services.get(key)
    const now = this.#maker.make({ set: SET_SERVICES, path: key }, serviceMessage(to), known)
    if (now !== known) this.services.set(key, now)
  }

  /** The state with these objects; that of `before` where nothing differs. */
  projectionOf(resolved: ResolvedView): ApiProjection {
    const old = this.#before?.state
    if (old !== undefined && this.services.size + this.endpoints.size === 0) return { state: old, resolved }
    const empty = PersistentMap.empty<ApiObject>()
    const state = {
      number: (old?.number ?? 0) + 1,
      services: (old?.services ?? empty).withOwn(this.services),
      endpoints: (old?.endpoints ?? empty).withOwn(this.endpoints),
    }
    return { state, resolved }
  }
}

export function* touchedViews(
  from: ResolvedView | undefined,
  to: ResolvedView,
): Iterable<readonly [ServiceKey, ServiceView | undefined]> {
  for (const key of touchedBetween(from, to)) yield [key, viewOf(to, key)]
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

function viewOf({ snapshot, table }: ResolvedView, key: ServiceKey): ServiceView | undefined {
  return viewIn(snapshot, key, table.services.get(key))
}

export function viewIn(
  snapshot: Snapshot,
  key: ServiceKey,
  frontends: ServiceFrontends | undefined,
): ServiceView | undefined {
  const service = snapshot.services.get(key)
  if (service === undefined || frontends === undefined || !isReached(frontends)) return undefined
  return { service, frontends, slices: snapshot.slices.get(key) ?? [] }
}
