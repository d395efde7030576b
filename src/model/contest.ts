import type { Ip } from '../base/ip.ts'
import type { PersistentMap } from '../base/persistent-map.ts'
import type { Claims } from './claims.ts'
import type { ServiceListeners } from './listeners.ts'
import { isOurs, type NodeContext } from './node-context.ts'
import type { Service, ServiceKey, ServicePortSpec } from './service.ts'

/** The Services that a Service may have to yield to. */
export interface Arena {
  readonly here: NodeContext
  readonly services: PersistentMap<Service>
  readonly claims: Claims
  readonly listeners: PersistentMap<ServiceListeners>
}

/** Whether any ClusterIP of the Service is another one's, too. */
export function isContested(arena: Arena, { clusterIps }: Service): boolean {
  if (arena.claims.contested === 0) return false
  for (let index = 0; index < clusterIps.length; index++)
    if (typeof arena.claims.clusterIps.get(clusterIps[index] ?? '') !== 'string') return true
  return false
}

/** The Service that has this port of the ClusterIP, if it is not `service`. */
export function clusterPortOwner(
  arena: Arena,
  service: Service,
  ip: Ip,
  port: ServicePortSpec,
): Service | undefined {
  const claimants = arena.claims.clusterIps.get(ip)
  if (claimants === undefined || typeof claimants === 'string') return undefined
  return firstRival(arena, service, claimants, other =>
    other.ports.some(its => its.port === port.port && its.protocol === port.protocol),
  )
}

/** The Service that has this ClusterIP as a whole, if it is not `service`. */
export function clusterIpOwner(arena: Arena, service: Service, ip: Ip): Service | undefined {
  const claimants = arena.claims.clusterIps.get(ip)
  return claimants === undefined || typeof claimants === 'string'
    ? undefined
    : firstRival(arena, service, claimants, () => true)
}

/** The Service that has this place (see Claims), if it is not `service`. */
export function placeOwner(arena: Arena, service: Service, place: string): Service | undefined {
  const claimants = arena.claims.places.get(place)
  return claimants === undefined || typeof claimants === 'string'
    ? undefined
    : firstRival(arena, service, claimants, () => true)
}

/** The Service that has this NodePort and comes before `service`, which need not want it. */
export function nodePortOwner(arena: Arena, service: Service, place: string): Service | undefined {
  const claimants = arena.claims.places.get(place)
  if (claimants === undefined) return undefined
  return firstRival(arena, service, typeof claimants === 'string' ? [claimants] : claimants, () => true)
}

/** The best-placed other claimant that comes before `service`. */
function firstRival(
  arena: Arena,
  service: Service,
  claimants: readonly ServiceKey[],
  wants: (other: Service) => boolean,
): Service | undefined {
  let first = service
  for (const key of claimants) {
    const other = arena.services.get(key)
    if (other !== undefined && isOurs(arena.here, other) && wants(other) && comesBefore(other, first))
      first = other
  }
  return first === service ? undefined : first
}

/** The order in which Services own what several of them claim: age, then UID, then key. */
function comesBefore(a: Service, b: Service): boolean {
  if (a.creationTimestamp !== b.creationTimestamp) {
    // Without a date there is no seniority to show.
    if (a.creationTimestamp === '' || b.creationTimestamp === '') return b.creationTimestamp === ''
    return a.creationTimestamp < b.creationTimestamp
  }
  return a.uid === b.uid ? a.key < b.key : a.uid < b.uid
}
