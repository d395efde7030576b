import { PersistentMap } from '../base/collections.ts'
import { localv1 } from './schema.ts'

/** One message `localv1.OpItem` behind gRPC's prefix: the bytes of `memory` from `start` to before `end`. */
export interface Frame {
  /** May hold others, too; it is no longer written to. */
  readonly memory: Buffer
  readonly start: number
  readonly end: number
}

/** One published object, with the frame that sets it: made once and shared by all readers. */
export interface ApiObject extends Frame {
  /** `namespace/name` of a Service, `namespace/name/key` of an endpoint. */
  readonly path: string
  /** The message Service or Endpoint by KPNG's names; empty fields are undefined. */
  readonly json: object
}

/** The state that one node publishes. Immutable; the next version shares what did not change. */
export interface ApiState {
  /** Grows with every change. */
  readonly number: number
  readonly services: PersistentMap<ApiObject>
  readonly endpoints: PersistentMap<ApiObject>
  /** This node's exceptions from `services` and `endpoints`, which it shares with other nodes. */
  readonly own?: OwnObjects
}

/** Objects by path that take the place of shared ones; null where there is none. */
export interface OwnObjects {
  readonly services: PersistentMap<ApiObject | null>
  readonly endpoints: PersistentMap<ApiObject | null>
}

type SetName = keyof OwnObjects
const SET_NAMES: readonly SetName[] = ['services', 'endpoints']

export const { ServicesSet: SET_SERVICES, EndpointsSet: SET_ENDPOINTS } = localv1.Set
type ApiSet = typeof SET_SERVICES | typeof SET_ENDPOINTS

/** An upper bound of the number of objects that differ between two versions that are held. */
export function distance(from: ApiState, to: ApiState): number {
  return SET_NAMES.reduce(
    (sum, set) =>
      sum +
      PersistentMap.distance(from[set], to[set]) +
      PersistentMap.distance(from.own?.[set] ?? NOTHING, to.own?.[set] ?? NOTHING),
    0,
  )
}

const NOTHING = PersistentMap.empty<ApiObject | null>()

/** Lets `older` differ from `newest` directly; see PersistentMap.skip(). */
export function skipState(older: ApiState, between: ApiState, newest: ApiState): void {
  for (const set of SET_NAMES) {
    skip(older[set], between[set], newest[set])
    skip(older.own?.[set] ?? NOTHING, between.own?.[set] ?? NOTHING, newest.own?.[set] ?? NOTHING)
  }
}

function skip<V>(older: PersistentMap<V>, between: PersistentMap<V>, newest: PersistentMap<V>): void {
  if (between !== older && between !== newest) PersistentMap.skip(older, between, newest)
}

/** The object at a path, from the point of view of the node. */
function objectAt(state: ApiState, set: SetName, path: string): ApiObject | undefined {
  const own = state.own?.[set].get(path)
  return own === undefined ? state[set].get(path) : (own ?? undefined)
}

function objectsOf(state: ApiState, set: SetName): readonly ApiObject[] {
  const { own } = state
  if (own === undefined || own[set].size === 0) return state[set].values()
  const shared = state[set].keys().flatMap(path => objectAt(state, set, path) ?? [])
  const more = own[set].entries().flatMap(([path, object]) => (state[set].has(path) ? [] : (object ?? [])))
  return [...shared, ...more]
}

/** localv1.Ref. */
export interface ApiRef {
  readonly set: ApiSet
  readonly path: string
}

export type ApiOperation =
  | { readonly kind: 'set'; readonly set: ApiSet; readonly object: ApiObject }
  | { readonly kind: 'delete'; readonly set: ApiSet; readonly path: string }

/**
 * Lists the operations that lead from one version to another (undefined: from nothing). No endpoint is ever without its
 * Service: Services and then endpoints are set, endpoints and then Services are deleted. Costs what changed in between.
 */
export function* difference(before: ApiState | undefined, after: ApiState): Iterable<ApiOperation> {
  const { services, endpoints } = changesBetween(before, after)
  for (const object of services.set) yield { kind: 'set', set: SET_SERVICES, object }
  for (const object of endpoints.set) yield { kind: 'set', set: SET_ENDPOINTS, object }
  for (const path of endpoints.deleted) yield { kind: 'delete', set: SET_ENDPOINTS, path }
  for (const path of services.deleted) yield { kind: 'delete', set: SET_SERVICES, path }
}

interface ObjectChanges {
  readonly set: readonly ApiObject[]
  readonly deleted: readonly string[]
}

/** Gives the changes of each set by itself. */
export function changesBetween(
  before: ApiState | undefined,
  after: ApiState,
): Readonly<Record<SetName, ObjectChanges>> {
  return {
    services: changesOf(before, after, 'services'),
    endpoints: changesOf(before, after, 'endpoints'),
  }
}

function changesOf(before: ApiState | undefined, after: ApiState, set: SetName): ObjectChanges {
  if (before === undefined) return { set: objectsOf(after, set), deleted: [] }
  const changed: ApiObject[] = []
  const deleted: string[] = []
  for (const path of changedPaths(before, after, set)) {
    const [was, now] = [objectAt(before, set, path), objectAt(after, set, path)]
    if (was === now) continue
    if (now === undefined) deleted.push(path)
    else if (was === undefined || !isSameFrame(was, now)) changed.push(now)
  }
  return { set: changed, deleted }
}

function changedPaths(before: ApiState, after: ApiState, set: SetName): Iterable<string> {
  const shared = PersistentMap.changes(before[set], after[set])
  const own = PersistentMap.changes(before.own?.[set] ?? NOTHING, after.own?.[set] ?? NOTHING)
  return own.length === 0 ? shared : new Set([...shared, ...own])
}

/** Compares the bytes; a node that moves to another zone shares other objects. */
export function isSameFrame(a: Frame, b: Frame): boolean {
  return a.memory.compare(b.memory, b.start, b.end, a.start, a.end) === 0
}
