import { familyOf } from '../../base/ip.ts'
import { serverKey } from '../../kernel/ipvs/key.ts'
import type { ServerKey, VirtualAddress } from '../../kernel/ipvs/state.ts'
import type { Backend, Frontend, PortFrontends, ServiceFrontends } from '../../model/frontend.ts'
import { PRIVATE_PORT_MAX } from './layout.ts'
import type { Surroundings } from './surroundings.ts'

/** A frontend at one address: NodePorts have as many of them as the node has addresses for them. */
export interface Place extends VirtualAddress {
  readonly key: ServerKey
  readonly frontend: Frontend
  /** What the server at this place balances over; empty where the rules answer. */
  readonly backends: readonly Backend[]
  /** A NodePort where a Service has this very address and number: what is at one address comes first. */
  readonly hidden: boolean
}

/** Whether a frontend with an address of its own has a place. */
export type IsTaken = (key: ServerKey) => boolean

export interface Placing {
  readonly surroundings: Surroundings
  readonly isTaken: IsTaken
}

/** One port of a Service at all its places. */
export interface PlacedPort {
  readonly port: PortFrontends
  readonly places: readonly Place[]
  /** Where a frontend has no place because somebody else's virtual server is there; the first of them. */
  readonly occupied: ServerKey | undefined
  /** A virtual server of its own that holds the cluster list and is no frontend; at most one. */
  readonly privateServer: VirtualAddress | undefined
  /** The server with the cluster list that other places share; undefined where none does. */
  readonly clusterHome: VirtualAddress | undefined
  /** The same for the list of endpoints on this node. */
  readonly localHome: VirtualAddress | undefined
  /** Traffic from inside needs the cluster list, and there is no place for it. */
  readonly homeless: boolean
}

/** The ports of a Service with what is where. Pure, and the same whatever other Services there are. */
export function placePorts(service: ServiceFrontends, placing: Placing): readonly PlacedPort[] {
  const given = new Set<string>()
  return service.ports.map(port => placePort({ service, port, given }, placing))
}

interface PortWork {
  readonly service: ServiceFrontends
  readonly port: PortFrontends
  /** Ports that private servers of the Service have. */
  readonly given: Set<string>
}

function placePort(work: PortWork, placing: Placing): PlacedPort {
  const { port } = work
  const { places, occupied } = placesOf(port, placing)
  const insiders = places.some(({ frontend }) => frontend.route.kind === 'external-local')
  const existing = places.find(place => holdsCluster(place, port))
  const isNeeded = insiders || (existing?.frontend.kind !== 'ClusterIP' && existing !== undefined)
  if (!isNeeded)
    return {
      ...{ port, places, occupied, privateServer: undefined },
      ...shared(port, places, existing),
      homeless: false,
    }
  const isPrivate = existing?.frontend.kind !== 'ClusterIP'
  const privateServer = isPrivate ? privateServerOf(work, placing.surroundings) : undefined
  const home = privateServer ?? existing
  const homeless = home === undefined
  return { port, places, occupied, privateServer, ...shared(port, places, home), homeless }
}

function shared(
  port: PortFrontends,
  places: readonly Place[],
  clusterHome: VirtualAddress | undefined,
): Pick<PlacedPort, 'clusterHome' | 'localHome'> {
  if (port.affinityTimeoutS === 0) return { clusterHome, localHome: undefined }
  // A client that is remembered at one place of the Service is known at the others.
  return { clusterHome, localHome: places.find(holdsLocal) }
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
 * A frontend has all of its places or none: a NodePort's number is recorded for all addresses, so that nobody could
 * tell later whose a virtual server at one of them is. ClusterIPs are nobody else's.
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
  // Hidden places count, too: which these are follows from other Services, and this must not.
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
 * A port of the Service's own ClusterIP that none of its frontends has; nobody else has frontends there. Undefined when
 * the ClusterIP is another Service's, or another device's and so not hidden by our rules.
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
