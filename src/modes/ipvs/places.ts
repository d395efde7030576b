import { FAMILIES, type Family, familyOf, type Ip, isLinkLocal, isLoopback } from '../../base/ip.ts'
import { hex } from '../../base/octets.ts'
import { entryKey } from '../../kernel/ipset/state.ts'
import { type ServerKey, serverKey, type VirtualAddress } from '../../kernel/ipvs/state.ts'
import type {
  Backend,
  Frontend,
  FrontendTable,
  NodePortAddresses,
  PortFrontends,
  ServiceFrontends,
} from '../../model/frontend.ts'
import type { ServiceKey } from '../../model/service.ts'
import { cidrKey, detectorFor, detectorKey } from '../common/detector.ts'
import { NODE_PORT_SETS, nodePortEntry, PRIVATE_PORT_MAX, setName } from './layout.ts'
import type { IpvsOptions } from './settings.ts'
import type { IpvsState } from './state.ts'

/** A frontend at one address. A node port has one place for each node address that serves it. */
export interface Place extends VirtualAddress {
  readonly key: ServerKey
  readonly frontend: Frontend
  /** The endpoints of the server at this place; empty where rules answer. */
  readonly backends: readonly Backend[]
  /** A Service has this address and port itself, and takes precedence over the node port. */
  readonly hidden: boolean
}

/** Tests whether a frontend with an address of its own has the key. */
type IsTaken = (key: ServerKey) => boolean

export interface Placing {
  readonly surroundings: Surroundings
  readonly isTaken: IsTaken
}

export interface PlacedPort {
  readonly port: PortFrontends
  readonly places: readonly Place[]
  /** The first place that a frontend lost to a virtual server of another program. */
  readonly occupied: ServerKey | undefined
  /** A virtual server with all endpoints, at a port of the ClusterIP that no frontend uses; at most one. */
  readonly privateServer: VirtualAddress | undefined
  /** The server to which rules redirect clients that may use all endpoints: the private one, or that of another place. */
  readonly clusterHome: VirtualAddress | undefined
  /** The server to which rules redirect clients of local endpoints, so that all places share one affinity table. */
  readonly localHome: VirtualAddress | undefined
  /** Clients inside need all endpoints, but no virtual server is free to serve them (`clusterHome` is undefined). */
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

/** The inputs that all Services are rendered with, besides themselves. */
export interface Surroundings {
  readonly nodePortIps: Readonly<Record<Family, readonly Ip[]>>
  /** The addresses of other devices, which need no binding and must not be removed from the node. */
  readonly localIps: ReadonlySet<Ip>
  readonly scheduler: string
  /** Schedulers that the kernel lacks. */
  readonly missingSchedulers: ReadonlySet<string>
  /** Virtual servers of other programs. */
  readonly occupied: ReadonlySet<ServerKey>
  /** Equal for surroundings in which every Service and every rule comes out the same. */
  readonly key: string
}

/** The places with virtual servers of other programs, as of the last read. */
export interface Occupied {
  readonly servers: ReadonlySet<ServerKey>
  /** A different number after each change. */
  readonly version: number
}

export interface SurroundingsOptions extends IpvsOptions {
  /** Schedulers that the kernel turned out to lack. */
  readonly missingSchedulers: ReadonlySet<string>
  /** Absent means none. */
  readonly occupied?: Occupied
}

const NOT_OCCUPIED: Occupied = { servers: new Set(), version: 0 }

export function surroundingsOf(frontends: FrontendTable, options: SurroundingsOptions): Surroundings {
  const { nodePorts, serviceCidrs, node } = frontends
  // Link-local addresses come and go with each pod, and belong to no Service.
  const localIps = frontends.localIps.filter(ip => !isLinkLocal(ip))
  const { scheduler, missingSchedulers, occupied = NOT_OCCUPIED } = options
  const nodePortIps = {
    IPv4: addressesOf(nodePorts.IPv4, 'IPv4', localIps),
    IPv6: addressesOf(nodePorts.IPv6, 'IPv6', localIps),
  }
  const key = JSON.stringify([
    FAMILIES.map(family => nodePortIps[family].map(hex)),
    localIps.map(hex),
    serviceCidrs.map(cidrKey),
    FAMILIES.map(family => detectorKey(detectorFor(family, options, node)) ?? null),
    [scheduler, ...[...missingSchedulers].sort()],
    [options.rules, options.tableName, options.masqueradeAll, options.masqueradeBit, occupied.version],
  ])
  const { servers } = occupied
  return { nodePortIps, localIps: new Set(localIps), scheduler, missingSchedulers, occupied: servers, key }
}

/**
 * Gives the addresses that serve node ports. A virtual server has one address. Where node ports are served on
 * all addresses, each address that other hosts can reach gets a virtual server.
 */
function addressesOf(nodePorts: NodePortAddresses, family: Family, localIps: readonly Ip[]): readonly Ip[] {
  if (nodePorts.kind === 'only') return [...new Set(nodePorts.ips.filter(ip => familyOf(ip) === family))]
  return localIps.filter(ip => familyOf(ip) === family && !isLoopback(ip))
}

/** The addresses and ports of Services at node addresses, where node ports give way, before and after a change. */
export interface Taken {
  readonly before: IsTaken
  readonly after: IsTaken
  /** The Services whose node ports become visible or hidden. */
  readonly touched: ReadonlySet<ServiceKey>
}

/** A Service before and after a change; a quarantined one is undefined. */
export interface ServiceChange {
  readonly key: ServiceKey
  readonly before: ServiceFrontends | undefined
  readonly after: ServiceFrontends | undefined
}

/** Compares the places before and after. `base` is undefined when everything is rendered again. */
export function takenBy(
  changes: Iterable<ServiceChange>,
  base: IpvsState | undefined,
  { nodePortIps }: Surroundings,
): Taken {
  const ips = new Set<Ip>(FAMILIES.flatMap(family => nodePortIps[family]))
  const gone = new Map<ServerKey, VirtualAddress>()
  const come = new Map<ServerKey, VirtualAddress>()
  if (ips.size > 0)
    for (const { before, after } of changes) {
      if (base !== undefined) collect(before, ips, gone)
      collect(after, ips, come)
    }
  const before = base === undefined ? () => false : takenIn(base)
  const after: IsTaken = key => come.has(key) || (!gone.has(key) && before(key))
  const touched = new Set<ServiceKey>()
  if (base !== undefined)
    for (const [key, address] of [...gone, ...come])
      if (before(key) !== after(key)) for (const user of nodePortUsers(base, address)) touched.add(user)
  return { before, after, touched }
}

function collect(
  service: ServiceFrontends | undefined,
  ips: ReadonlySet<Ip>,
  found: Map<ServerKey, VirtualAddress>,
): void {
  if (service === undefined) return
  for (const { protocol, frontends } of service.ports)
    for (const { ip, port } of frontends) {
      if (ip === undefined || !ips.has(ip)) continue
      const at = { protocol, ip, port }
      found.set(serverKey(at), at)
    }
}

/** Makes a check whether the Service of a virtual server has a frontend with that very address. */
function takenIn({ servers, frontends }: IpvsState): IsTaken {
  return key => {
    const placed = servers.get(key)
    if (placed === undefined) return false
    const { protocol, ip, port } = placed.server
    const ports = frontends?.services.get(placed.service)?.ports ?? []
    return ports.some(
      its => its.protocol === protocol && its.frontends.some(one => one.ip === ip && one.port === port),
    )
  }
}

function nodePortUsers({ entries }: IpvsState, at: VirtualAddress): readonly ServiceKey[] {
  const set = setName(NODE_PORT_SETS[at.protocol].all, familyOf(at.ip))
  return entries.get(entryKey(set, nodePortEntry(at)))?.services ?? []
}
