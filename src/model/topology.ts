import { isDraining } from './candidates.ts'
import type { Endpoint } from './endpoint.ts'

/** How hints narrow the ready endpoints (KEP-2433, KEP-3015). */
export type TopologyMode = 'none' | 'PreferSameNode' | 'PreferSameZone'

/** The node and zone from which endpoints are chosen. */
export interface Place {
  readonly nodeName: string
  /** Empty when unknown. */
  readonly zone: string
}

/** What must be known of all endpoints of a port before any one of them can be judged. */
export interface Survey {
  readonly topology: TopologyMode
  /** Some endpoint is ready. */
  readonly ready: boolean
  /** Some endpoint serves while it terminates. */
  readonly draining: boolean
  /** Some endpoint on this node is ready. */
  readonly localReady: boolean
  /** Some endpoint on this node serves while it terminates. */
  readonly localDraining: boolean
}

/** One pass over the endpoints of a port. */
export function survey(endpoints: readonly Endpoint[], place: Place): Survey {
  let ready = false
  let draining = false
  let localReady = false
  let localDraining = false
  for (let index = 0; index < endpoints.length; index++) {
    const endpoint = endpoints[index]
    if (endpoint === undefined) continue
    const isLocal = endpoint.nodeName === place.nodeName
    if (endpoint.conditions.ready) {
      ready = true
      localReady ||= isLocal
    }
    if (!isDraining(endpoint)) continue
    draining = true
    localDraining ||= isLocal
  }
  return { topology: topologyOf(endpoints, place), ready, draining, localReady, localDraining }
}

/** Hints of endpoints that are not ready say nothing; one ready endpoint without a hint turns them off for all. */
function topologyOf(endpoints: readonly Endpoint[], place: Place): TopologyMode {
  let hasNodeHints = true
  let hasZoneHints = place.zone !== ''
  let isNodeNamed = false
  let isZoneNamed = false
  for (let index = 0; index < endpoints.length; index++) {
    const endpoint = endpoints[index]
    if (endpoint?.conditions.ready !== true) continue
    hasNodeHints &&= endpoint.hints.forNodes.length > 0
    hasZoneHints &&= endpoint.hints.forZones.length > 0
    if (!hasNodeHints && !hasZoneHints) return 'none'
    isNodeNamed ||= endpoint.hints.forNodes.includes(place.nodeName)
    isZoneNamed ||= endpoint.hints.forZones.includes(place.zone)
  }
  if (hasNodeHints && isNodeNamed) return 'PreferSameNode'
  return hasZoneHints && isZoneNamed ? 'PreferSameZone' : 'none'
}
