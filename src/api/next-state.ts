import { PersistentMap } from '../base/persistent-map.ts'
import { Pauses, type Steps } from '../base/steps.ts'
import type { FrontendTable } from '../model/frontend.ts'
import type { ServiceKey } from '../model/service.ts'
import type { Snapshot } from '../model/snapshot.ts'
import { changedAddresses } from './changed-addresses.ts'
import { endpointKeys, endpointsOfService } from './endpoints.ts'
import { ObjectMaker } from './object-maker.ts'
import { isReached, isSameMessage, type ServiceView, serviceMessage } from './objects.ts'
import { type ApiObject, type ApiState, SET_ENDPOINTS, SET_SERVICES } from './state.ts'

/** What was resolved on this node, with the Snapshot that it was resolved from. */
export interface ResolvedView {
  readonly snapshot: Snapshot
  readonly table: FrontendTable
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
  const maker = new ObjectMaker({ isWhole: before === undefined })
  const draft: Draft = { maker, before, services: new Map(), endpoints: new Map(), pauses: new Pauses() }
  for (const key of touchedBetween(before?.resolved, resolved)) {
    const from = before && viewOf(before.resolved, key)
    const to = viewOf(resolved, key)
    restateService(draft, { key, from, to })
    yield* restateEndpoints(draft, { key, from, to })
    if (draft.pauses.due()) yield
  }
  if (before === undefined || draft.services.size + draft.endpoints.size > 0)
    return { state: stateAfter(draft), resolved }
  return { state: before.state, resolved }
}

interface Draft {
  readonly maker: ObjectMaker
  readonly before: ApiProjection | undefined
  /** Objects by path; undefined when deleted. */
  readonly services: Map<string, ApiObject | undefined>
  readonly endpoints: Map<string, ApiObject | undefined>
  /** Services and endpoints so far. */
  readonly pauses: Pauses
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

/** Undefined for a Service that is not published. */
function viewOf({ snapshot, table }: ResolvedView, key: ServiceKey): ServiceView | undefined {
  const [service, frontends] = [snapshot.services.get(key), table.services.get(key)]
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
