import type { Ip } from '../base/ip.ts'
import type { PersistentMap } from '../base/persistent-map.ts'
import type { Claims } from './claims.ts'
import type { ServiceListeners } from './listeners.ts'
import { isOurs, type NodeContext } from './node-context.ts'
import type { Service, ServiceKey, ServicePortSpec } from './service.ts'

/** The Services that a Service may have to yield to. */
export interface AddressOwnership {
  readonly here: NodeContext
  readonly services: PersistentMap<Service>
  readonly claims: Claims
  readonly listeners: PersistentMap<ServiceListeners>
}

/** Whether any ClusterIP of the Service is another one's, too. */
export function isContested(ownership: AddressOwnership, { clusterIps }: Service): boolean {
  if (ownership.claims.contested === 0) return false
  for (let index = 0; index < clusterIps.length; index++)
    if (typeof ownership.claims.clusterIps.get(clusterIps[index] ?? '') !== 'string') return true
  return false
}

/** The Service that has this port of the ClusterIP, if it is not `service`. */
export function clusterPortOwner(
  ownership: AddressOwnership,
  service: Service,
  ip: Ip,
  port: ServicePortSpec,
): Service | undefined {
  const claimants = ownership.claims.clusterIps.get(ip)
  if (claimants === undefined || typeof claimants === 'string') return undefined
  return firstRival(ownership, service, claimants, other =>
    other.ports.some(its => its.port === port.port && its.protocol === port.protocol),
  )
}

/** The Service that has this ClusterIP as a whole, if it is not `service`. */
export function clusterIpOwner(ownership: AddressOwnership, service: Service, ip: Ip): Service | undefined {
  const claimants = ownership.claims.clusterIps.get(ip)
  return claimants === undefined || typeof claimants === 'string'
    ? undefined
    : firstRival(ownership, service, claimants, () => true)
}

/** The Service that has this place (see Claims), if it is not `service`. */
export function placeOwner(
  ownership: AddressOwnership,
  service: Service,
  place: string,
): Service | undefined {
  const claimants = ownership.claims.places.get(place)
  return claimants === undefined || typeof claimants === 'string'
    ? undefined
    : firstRival(ownership, service, claimants, () => true)
}

/** The Service that has this NodePort and comes before `service`, which need not want it. */
export function nodePortOwner(
  ownership: AddressOwnership,
  service: Service,
  place: string,
): Service | undefined {
  const claimants = ownership.claims.places.get(place)
  if (claimants === undefined) return undefined
  return firstRival(ownership, service, typeof claimants === 'string' ? [claimants] : claimants, () => true)
}

/** The best-placed other claimant that comes before `service`. */
function firstRival(
  ownership: AddressOwnership,
  service: Service,
  claimants: readonly ServiceKey[],
  wants: (other: Service) => boolean,
): Service | undefined {
  let first = service
  for (const key of claimants) {
    const other = ownership.services.get(key)
    if (other !== undefined && isOurs(ownership.here, other) && wants(other) && comesBefore(other, first))
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
