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

/** No more endpoints than the EndpointSlice controller puts into one. */
const SLICE_MAX = 1_000

/** The slices of a Service, the first one first. */
export function slicesOf(index: number, size: ClusterSize): readonly KubeObject[] {
  const [first, ...more] = Array.from({ length: Math.ceil(size.endpoints / SLICE_MAX) }, (_, part) => {
    const from = part * SLICE_MAX
    const slice = sliceObject(FIRST + index, Math.min(SLICE_MAX, size.endpoints - from), from)
    return withoutIdentity(slice, part === 0 ? '' : `-${part}`)
  })
  return first === undefined ? [] : [first, ...more]
}

/** The first slice of a Service; `replaced` takes the place of its first endpoint, if it is given. */
export function sliceOf(index: number, { endpoints }: ClusterSize, replaced?: string): KubeObject {
  const slice = withoutIdentity(sliceObject(FIRST + index, Math.min(SLICE_MAX, endpoints)))
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
function withoutIdentity(object: object, suffix = ''): KubeObject {
  if (!isObject(object)) throw new Error('not an object')
  const { uid, resourceVersion, ...metadata } = object.metadata
  return { ...object, metadata: { ...metadata, name: `${metadata.name}${suffix}` } }
}
