import type { Ip } from '../base/ip.ts'
import { candidatesOf, type PortEndpoints, portsIn, positionOf, type Wanted } from './port-endpoints.ts'
import type { Endpoint, SliceList } from './service.ts'

/** The endpoints of a port that several slices have, kept so that the next merge costs what has changed. */
export interface MergedEndpoints extends PortEndpoints {
  readonly wanted: Wanted
  readonly slices: SliceList
  /** No address is in two slices. */
  readonly isOnce: boolean
}

interface MergeInput {
  readonly slices: SliceList
  readonly wanted: Wanted
  /** An earlier merge of the same Service; undefined for none. */
  readonly former: MergedEndpoints | undefined
}

/** Chooses endpoints as candidatesOf() does, and gives them without their slices. */
export function endpointsOf({ slices, wanted, former }: MergeInput): MergedEndpoints {
  const patched = former === undefined ? undefined : patchedBy(former, slices)
  if (patched !== undefined) return { wanted, slices, isOnce: true, ...patched }
  const candidates = candidatesOf(slices, wanted)
  const [first] = candidates
  const isOnePort = candidates.every(({ port }) => port === first?.port)
  const listed = slices.reduce(
    (sum, slice) => sum + slice.endpoints.length * portsIn(slice, wanted).length,
    0,
  )
  return {
    wanted,
    slices,
    isOnce: listed === candidates.length,
    endpoints: candidates.map(({ endpoint }) => endpoint),
    ports: isOnePort ? (first?.port ?? 0) : candidates.map(({ port }) => port),
  }
}

export function mergeOf(
  kept: readonly MergedEndpoints[] | undefined,
  { name, protocol, family }: Wanted,
): MergedEndpoints | undefined {
  return kept?.find(
    ({ wanted }) => wanted.name === name && wanted.protocol === protocol && wanted.family === family,
  )
}

/** Beyond these a merge of all slices takes no longer. */
const PATCHED_SLICES_MAX = 8
const PATCHED_ENDPOINTS_MAX = 512

/** The merge after some slices changed; undefined where it has to be made anew. */
function patchedBy(former: MergedEndpoints, slices: SliceList): PortEndpoints | undefined {
  const { ports, isOnce } = former
  if (!isOnce || typeof ports !== 'number') return undefined
  const gone = endpointsOnlyIn(former.slices, slices, former)
  const fresh = endpointsOnlyIn(slices, former.slices, former)
  if (gone === undefined || fresh === undefined) return undefined
  const endpoints = former.endpoints.slice()
  for (const ip of gone.keys()) if (!fresh.has(ip)) endpoints.splice(positionOf(endpoints, ip), 1)
  for (const [ip, endpoint] of fresh) {
    const at = positionOf(endpoints, ip)
    if (endpoints[at]?.ip !== ip) endpoints.splice(at, 0, endpoint)
    else if (!gone.has(ip)) return undefined
    else if (endpoints[at].traits !== endpoint.traits) endpoints[at] = endpoint
  }
  return { endpoints, ports }
}

/** Finds the endpoints of new slices by address; undefined for too many, for one address twice, and for another port. */
function endpointsOnlyIn(
  slices: SliceList,
  others: SliceList,
  { wanted, ports }: MergedEndpoints,
): ReadonlyMap<Ip, Endpoint> | undefined {
  const known = new Set(others)
  const changed = slices.filter(slice => !known.has(slice))
  if (changed.length > PATCHED_SLICES_MAX) return undefined
  const found = new Map<Ip, Endpoint>()
  let count = 0
  for (const slice of changed) {
    const its = portsIn(slice, wanted)
    if (its.length === 0) continue
    count += slice.endpoints.length
    if (its.length > 1 || its[0] !== ports || count > PATCHED_ENDPOINTS_MAX) return undefined
    for (const endpoint of slice.endpoints) found.set(endpoint.ip, endpoint)
  }
  return found.size === count ? found : undefined
}
