import { PersistentMap } from '../base/persistent-map.ts'

/** One object that back ends are told of: made once, and shared by all who ask. */
export interface ApiObject {
  /** `namespace/name` of a Service, `namespace/name/key` of an endpoint. */
  readonly path: string
  /** The encoded message of localv1: Service or Endpoint. */
  readonly bytes: Uint8Array
  /** The same with KPNG's names; empty fields are left out. */
  readonly json: object
}

/** What one node is told. Immutable; the next version shares what did not change. */
export interface ApiState {
  /** Grows with every change. */
  readonly number: number
  /** By path, as are the endpoints. */
  readonly services: PersistentMap<ApiObject>
  readonly endpoints: PersistentMap<ApiObject>
}

/** Numbers of localv1.Set. */
export const SET_SERVICES = 1
export const SET_ENDPOINTS = 2
export type ApiSet = typeof SET_SERVICES | typeof SET_ENDPOINTS

export type ApiOperation =
  | { readonly kind: 'set'; readonly set: ApiSet; readonly object: ApiObject }
  | { readonly kind: 'delete'; readonly set: ApiSet; readonly path: string }

/**
 * What leads from one version to another (undefined: from nothing), in an order in which no endpoint is ever without its
 * Service: Services and then endpoints are set, endpoints and then Services are deleted. Costs what changed in between.
 */
export function* difference(before: ApiState | undefined, after: ApiState): Iterable<ApiOperation> {
  const services = changesOf(before?.services, after.services)
  const endpoints = changesOf(before?.endpoints, after.endpoints)
  for (const object of services.set) yield { kind: 'set', set: SET_SERVICES, object }
  for (const object of endpoints.set) yield { kind: 'set', set: SET_ENDPOINTS, object }
  for (const path of endpoints.deleted) yield { kind: 'delete', set: SET_ENDPOINTS, path }
  for (const path of services.deleted) yield { kind: 'delete', set: SET_SERVICES, path }
}

interface Changes {
  readonly set: readonly ApiObject[]
  readonly deleted: readonly string[]
}

function changesOf(before: PersistentMap<ApiObject> | undefined, after: PersistentMap<ApiObject>): Changes {
  if (before === undefined) return { set: after.values(), deleted: [] }
  const set: ApiObject[] = []
  const deleted: string[] = []
  for (const [path, , object] of PersistentMap.differences(before, after)) {
    if (object === undefined) deleted.push(path)
    else set.push(object)
  }
  return { set, deleted }
}
