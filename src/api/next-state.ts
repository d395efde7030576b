import { PersistentMap } from '../base/persistent-map.ts'
import type { Steps } from '../base/steps.ts'
import type { FrontendTable } from '../model/frontend.ts'
import type { ServiceKey } from '../model/service.ts'
import type { Snapshot } from '../model/snapshot.ts'
import { ObjectMaker } from './object-maker.ts'
import { messagesOf } from './objects.ts'
import { type ApiObject, type ApiState, SET_ENDPOINTS, SET_SERVICES } from './state.ts'

/** What was resolved on this node, with the Snapshot that it was resolved from. */
export interface ResolvedView {
  readonly snapshot: Snapshot
  readonly table: FrontendTable
}

/** A state with all that the next one is computed from; only the newest is to be kept. */
export interface ApiProjection {
  readonly state: ApiState
  readonly resolved: ResolvedView
  /** By Service key. */
  readonly endpoints: PersistentMap<readonly ApiObject[]>
}

/** Services between two offers to pause. */
const YIELD_EVERY = 100

/**
 * What back ends are told of what was resolved. Costs what changed since `before`: whatever says the same keeps its very
 * object, and when nothing says anything else, the state is the one from before.
 */
export function* nextApiState(
  before: ApiProjection | undefined,
  resolved: ResolvedView,
): Steps<ApiProjection> {
  const maker = new ObjectMaker({ isWhole: before === undefined })
  const draft: Draft = { maker, services: new Map(), endpoints: new Map(), lists: new Map() }
  let count = 0
  for (const key of touchedBetween(before?.resolved, resolved)) {
    yield* restate(draft, before, { key, resolved })
    if (++count % YIELD_EVERY === 0) yield
  }
  const lists = (before?.endpoints ?? PersistentMap.empty<readonly ApiObject[]>()).withOwn(draft.lists)
  if (before === undefined || draft.services.size + draft.endpoints.size > 0)
    return { state: stateAfter(before?.state, draft), resolved, endpoints: lists }
  return { state: before.state, resolved, endpoints: lists }
}

interface Draft {
  readonly maker: ObjectMaker
  /** By path; undefined for what is gone. */
  readonly services: Map<string, ApiObject | undefined>
  readonly endpoints: Map<string, ApiObject | undefined>
  readonly lists: Map<ServiceKey, readonly ApiObject[] | undefined>
}

function stateAfter(before: ApiState | undefined, { maker, services, endpoints }: Draft): ApiState {
  const empty = PersistentMap.empty<ApiObject>()
  return {
    number: (before?.number ?? 0) + 1,
    services: (before?.services ?? empty).withOwn(services),
    endpoints: (before?.endpoints ?? empty).withOwn(endpoints),
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

interface Subject {
  readonly key: ServiceKey
  readonly resolved: ResolvedView
}

const NO_OBJECTS: readonly ApiObject[] = []

function* restate(draft: Draft, before: ApiProjection | undefined, { key, resolved }: Subject): Steps<void> {
  const { snapshot, table } = resolved
  const [service, frontends] = [snapshot.services.get(key), table.services.get(key)]
  const slices = snapshot.slices.get(key) ?? []
  const messages =
    service === undefined || frontends === undefined
      ? undefined
      : yield* messagesOf({ service, frontends, slices })
  const known = before?.state.services.get(key)
  const now = messages && draft.maker.make({ set: SET_SERVICES, path: key }, messages.service, known)
  if (now !== known) draft.services.set(key, now)
  const old = before?.endpoints.get(key) ?? NO_OBJECTS
  const gone = new Map(old.map(object => [object.path, object]))
  const list: ApiObject[] = []
  for (const [name, message] of messages?.endpoints ?? []) {
    const path = `${key}/${name}`
    const its = gone.get(path)
    const object = draft.maker.make({ set: SET_ENDPOINTS, path }, message, its)
    list.push(object)
    gone.delete(path)
    if (object !== its) draft.endpoints.set(path, object)
  }
  for (const path of gone.keys()) draft.endpoints.set(path, undefined)
  if (list.length !== old.length || list.some((object, index) => object !== old[index]))
    draft.lists.set(key, list.length === 0 ? undefined : list)
}
