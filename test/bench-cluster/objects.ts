import { type ClusterSize, serviceObject, sliceObject } from '../bench/cluster.ts'
import { isObject, type KubeObject } from '../support/reference/api.ts'

/** Holds the addresses of test/bench/cluster.ts. */
export const SERVICE_CIDR = '10.96.0.0/12'
/** The API server takes the first address of the range for itself. */
const FIRST = 256

export function namespaces(): readonly string[] {
  return Array.from({ length: 50 }, (_, index) => `ns-${index}`)
}

export function serviceOf(index: number): KubeObject {
  return withoutIdentity(serviceObject(FIRST + index))
}

/** `replaced` takes the place of its first endpoint, if it is given. */
export function sliceOf(index: number, { endpoints }: ClusterSize, replaced?: string): KubeObject {
  const slice = withoutIdentity(sliceObject(FIRST + index, endpoints))
  if (replaced === undefined || !Array.isArray(slice.endpoints)) return slice
  const [first, ...rest] = slice.endpoints
  return { ...slice, endpoints: [{ ...first, addresses: [replaced] }, ...rest] }
}

/** Where a client reaches it, at port 80. */
export function vipOf(index: number): string {
  const number = FIRST + index
  return `10.${96 + (number >> 16)}.${(number >> 8) & 255}.${number & 255}`
}

/** An address that no endpoint has had, by the number of the change. */
export function freshAddress(change: number): string {
  return `10.${120 + (change >> 16)}.${(change >> 8) & 255}.${change & 255}`
}

/** The API server gives uids and versions. */
function withoutIdentity(object: object): KubeObject {
  if (!isObject(object)) throw new Error('not an object')
  const { uid, resourceVersion, ...metadata } = object.metadata
  return { ...object, metadata }
}
