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

/** Frames that stand behind each other in one memory. */
export interface Run extends Frame {
  readonly operations: number
}

/** What one node publishes. Immutable; the next version shares what did not change. */
export interface ApiState {
  /** Grows with every change. */
  readonly number: number
  /** Services by path. */
  readonly services: PersistentMap<ApiObject>
  readonly endpoints: PersistentMap<ApiObject>
  /** The frames of all objects of a state that was made at once, in the order of difference(). */
  readonly runs?: readonly Run[]
}

export const { ServicesSet: SET_SERVICES, EndpointsSet: SET_ENDPOINTS } = localv1.Set
type ApiSet = typeof SET_SERVICES | typeof SET_ENDPOINTS

/** So many objects differ between two versions that are held, or fewer. */
export function distance(from: ApiState, to: ApiState): number {
  return (
    PersistentMap.distance(from.services, to.services) + PersistentMap.distance(from.endpoints, to.endpoints)
  )
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
 * What leads from one version to another (undefined: from nothing), in an order in which no endpoint is ever without its
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
  /** Paths. */
  readonly deleted: readonly string[]
}

/** The same, of each set by itself. */
export function changesBetween(
  before: ApiState | undefined,
  after: ApiState,
): { readonly services: ObjectChanges; readonly endpoints: ObjectChanges } {
  return {
    services: changesOf(before?.services, after.services),
    endpoints: changesOf(before?.endpoints, after.endpoints),
  }
}

function changesOf(
  before: PersistentMap<ApiObject> | undefined,
  after: PersistentMap<ApiObject>,
): ObjectChanges {
  if (before === undefined) return { set: after.values(), deleted: [] }
  const set: ApiObject[] = []
  const deleted: string[] = []
  for (const [path, , object] of PersistentMap.differences(before, after)) {
    if (object === undefined) deleted.push(path)
    else set.push(object)
  }
  return { set, deleted }
}
