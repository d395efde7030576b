import { familyOf } from '../../base/ip.ts'
import { serverKey } from '../../kernel/ipvs/key.ts'
import type { ServerKey, VirtualAddress } from '../../kernel/ipvs/state.ts'
import type { Backend, Frontend, PortFrontends, ServiceFrontends } from '../../model/frontend.ts'
import { PRIVATE_PORT_MAX } from './layout.ts'
import type { Surroundings } from './surroundings.ts'

/** A frontend at one address. A node port has one place for each node address that serves it. */
export interface Place extends VirtualAddress {
  readonly key: ServerKey
  readonly frontend: Frontend
  /** The endpoints of the server at this place; empty where rules answer. */
  readonly backends: readonly Backend[]
  /** Whether a Service has this very address and port. It takes precedence over the node port. */
  readonly hidden: boolean
}

/** Whether a frontend with an address of its own has the place. */
export type IsTaken = (key: ServerKey) => boolean

export interface Placing {
  readonly surroundings: Surroundings
  readonly isTaken: IsTaken
}

/** One port of a Service with all its places. */
export interface PlacedPort {
  readonly port: PortFrontends
  readonly places: readonly Place[]
  /** The first place that a frontend lost to a virtual server of another program. */
  readonly occupied: ServerKey | undefined
  /** A virtual server that holds the cluster list and is no frontend; at most one. */
  readonly privateServer: VirtualAddress | undefined
  /** The server with the cluster list that other places share; undefined where none does. */
  readonly clusterHome: VirtualAddress | undefined
  /** The server with the list of endpoints on this node that other places share. */
  readonly localHome: VirtualAddress | undefined
  /** Whether traffic from inside needs the cluster list, but no server can hold it. */
  readonly homeless: boolean
}

/** Places the ports of a Service. Pure; the result does not depend on other Services. */
export function placePorts(service: ServiceFrontends, placing: Placing): readonly PlacedPort[] {
  const given = new Set<string>()
  return service.ports.map(port => placePort({ service, port, given }, placing))
}

interface PortWork {
  readonly service: ServiceFrontends
  readonly port: PortFrontends
  /** The ports of the Service's private servers. */
  readonly given: Set<string>
}

function placePort(work: PortWork, placing: Placing): PlacedPort {
  const { port } = work
  const { places, occupied } = placesOf(port, placing)
  const hasInsiders = places.some(({ frontend }) => frontend.route.kind === 'external-local')
  const existing = places.find(place => holdsCluster(place, port))
  const isClusterIp = existing?.frontend.kind === 'ClusterIP'
  const isNeeded = hasInsiders || (existing !== undefined && !isClusterIp)
  const privateServer = isNeeded && !isClusterIp ? privateServerOf(work, placing.surroundings) : undefined
  const clusterHome = privateServer ?? existing
  // With affinity, a client that one place of the Service remembers is known at the others.
  const localHome = port.affinityTimeoutS > 0 ? places.find(holdsLocal) : undefined
  const homeless = isNeeded && clusterHome === undefined
  return { port, places, occupied, privateServer, clusterHome, localHome, homeless }
}

function holdsCluster({ frontend: { route }, hidden }: Place, { affinityTimeoutS }: PortFrontends): boolean {
  if (route.kind === 'internal') return route.over === 'cluster'
  return route.kind === 'external-cluster' && affinityTimeoutS > 0 && !hidden
}

function holdsLocal({ frontend: { route }, backends, hidden }: Place): boolean {
  if (backends.length === 0 || hidden) return false
  return route.kind === 'external-local' || (route.kind === 'internal' && route.over === 'local')
}

/**
 * Gives the places of a port. A frontend has all of its places or none. The record of a node port covers all
 * addresses, so a partial set of places would hide which program owns a virtual server at one of them.
 * ClusterIPs belong to no other program.
 */
function placesOf(port: PortFrontends, placing: Placing): Pick<PlacedPort, 'places' | 'occupied'> {
  const places: Place[] = []
  let occupied: ServerKey | undefined
  for (const frontend of port.frontends) {
    const its = placesOfFrontend(frontend, port, placing)
    const other = frontend.kind === 'ClusterIP' ? undefined : occupiedAmong(its, placing.surroundings)
    if (other === undefined) places.push(...its)
    occupied ??= other
  }
  return { places, occupied }
}

function placesOfFrontend(
  frontend: Frontend,
  port: PortFrontends,
  { surroundings: { nodePortIps }, isTaken }: Placing,
): readonly Place[] {
  const { protocol, family } = port
  const backends = backendsOf(frontend, port)
  const isNodePort = frontend.ip === undefined
  return (isNodePort ? nodePortIps[family] : [frontend.ip]).map(ip => {
    const at = { protocol, ip, port: frontend.port }
    const key = serverKey(at)
    return { ...at, key, frontend, backends, hidden: isNodePort && isTaken(key) }
  })
}

function occupiedAmong(places: readonly Place[], { occupied }: Surroundings): ServerKey | undefined {
  if (occupied.size === 0) return undefined
  // Hidden places count too. They depend on other Services, and this result must not.
  return places.find(({ key }) => occupied.has(key))?.key
}

const NONE: readonly Backend[] = []

function backendsOf({ route }: Frontend, { cluster, local }: PortFrontends): readonly Backend[] {
  switch (route.kind) {
    case 'reject':
    case 'drop':
      return NONE
    case 'internal':
      return route.over === 'local' ? local : cluster
    case 'external-cluster':
      return cluster
    case 'external-local':
      return local
  }
}

/**
 * Chooses a port of the Service's own ClusterIP that no frontend uses; no other Service has frontends there.
 * Gives undefined when the ClusterIP belongs to another Service, or to another device, where our rules do not
 * hide it.
 */
function privateServerOf(work: PortWork, { localIps }: Surroundings): VirtualAddress | undefined {
  const { service, port, given } = work
  const { protocol, family } = port
  const ip = service.clusterIps.find(its => familyOf(its) === family)
  if (ip === undefined || localIps.has(ip)) return undefined
  const isFree = (number: number): boolean =>
    !given.has(`${protocol} ${family} ${number}`) &&
    !service.ports.some(
      its => its.protocol === protocol && its.frontends.some(one => one.ip === ip && one.port === number),
    )
  for (let number = PRIVATE_PORT_MAX; number > 0; number--) {
    if (!isFree(number)) continue
    given.add(`${protocol} ${family} ${number}`)
    return { protocol, ip, port: number }
  }
  return undefined
}
