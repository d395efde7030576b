import { anyContains, type Cidr, FAMILIES, type Family, familyOf, type Ip } from '../../base/ip.ts'
import { entryKey, type IpsetEntry } from '../../kernel/ipset/state.ts'
import {
  destinationKey,
  IP_VS_CONN_F_MASQ,
  IP_VS_SVC_F_PERSISTENT,
  IP_VS_SVC_F_SCHED2,
  type RealServer,
  type ServerKey,
  sameDestination,
  sameSettings,
  serverKey,
  type VirtualAddress,
  type VirtualServer,
  WHOLE_ADDRESS,
} from '../../kernel/ipvs/state.ts'
import type { Element, NftFamily, Verdict } from '../../kernel/nft/state.ts'
import { BALANCE_ANNOTATION, isHashed } from '../../model/balance.ts'
import { objectText, type Refusal } from '../../model/fields.ts'
import type { Backend, Frontend, PortFrontends, ServiceFrontends } from '../../model/frontend.ts'
import type { ServiceKey } from '../../model/service.ts'
import { GOTO_NO_LOCAL, GOTO_REJECT } from '../common/rules.ts'
import { commentOf, LAYOUTS, NFT_FAMILIES, portData, portKey } from '../common/tables.ts'
import { entryAt, NODE_PORT_SETS, nodePortEntry, type SetStem, setName } from './layout.ts'
import { type Place, type PlacedPort, type Placing, placePorts, type Surroundings } from './places.ts'
import type { PlacedServer } from './state.ts'

export interface ServiceRendering {
  readonly servers: ReadonlyMap<ServerKey, PlacedServer>
  /** Entries by entryKey. */
  readonly entries: ReadonlyMap<string, SetEntry>
  /** Addresses to bind to the dummy device. */
  readonly addresses: ReadonlySet<Ip>
  readonly elements: Readonly<Record<NftFamily, readonly Element[]>>
  readonly refusals: readonly Refusal[]
}

interface SetEntry {
  readonly set: string
  readonly entry: IpsetEntry
}

const NOTHING: ServiceRendering = {
  servers: new Map(),
  entries: new Map(),
  addresses: new Set(),
  elements: { ip: [], ip6: [] },
  refusals: [],
}

/** Renders one Service. Pure: equal Services in equal surroundings give equal results. */
export function renderService(service: ServiceFrontends | undefined, placing: Placing): ServiceRendering {
  if (service === undefined) return NOTHING
  const { surroundings } = placing
  const placed = placePorts(service, placing)
  const servers = new Map<ServerKey, PlacedServer>()
  const entries = new Map<string, SetEntry>()
  const elements: Record<NftFamily, Element[]> = { ip: [], ip6: [] }
  const put = (set: string, entry: IpsetEntry) => entries.set(entryKey(set, entry), { set, entry })
  for (const port of placed) {
    for (const [key, server] of serversOf(port, surroundings)) servers.set(key, server)
    elements[port.port.family === 'IPv4' ? 'ip' : 'ip6'].push(...elementsOf(port))
  }
  addEntries(service, placed, put)
  const addresses = addressesOf(service, placed, surroundings.localIps)
  for (const ip of addresses) put(setName('IPVS-IPS', familyOf(ip)), { ip })
  for (const family of NFT_FAMILIES)
    elements[family].push(...healthCheckElements(service, { family: LAYOUTS[family].model, addresses }))
  return { servers, entries, addresses, elements, refusals: refusalsOf(service, placed, placing) }
}

/** Gives the addresses to bind. An address of another device needs no binding. */
function addressesOf(
  { clusterIps }: ServiceFrontends,
  placed: readonly PlacedPort[],
  localIps: ReadonlySet<Ip>,
): ReadonlySet<Ip> {
  const addresses = new Set<Ip>()
  for (const ip of clusterIps) if (!localIps.has(ip)) addresses.add(ip)
  for (const { places } of placed)
    for (const { ip, frontend } of places)
      if (frontend.ip !== undefined && !localIps.has(ip)) addresses.add(ip)
  return addresses
}

function refusalsOf(
  { service, ports }: ServiceFrontends,
  placed: readonly PlacedPort[],
  { surroundings }: Placing,
): readonly Refusal[] {
  const scheduler = schedulerRefusal(service, ports, surroundings)
  const homeless = placed.find(port => port.homeless)
  const occupied = placed.find(port => port.occupied !== undefined)?.occupied
  return [
    ...(scheduler === undefined ? [] : [scheduler]),
    ...(homeless === undefined ? [] : [homelessRefusal(service, homeless)]),
    ...(occupied === undefined ? [] : [occupiedRefusal(service, occupied)]),
  ]
}

function occupiedRefusal(service: string, key: ServerKey): Refusal {
  return {
    object: objectText('Service', service),
    field: 'spec.ports',
    value: key,
    reason:
      'another program has a virtual server at this address and port; kprobe keeps that server and does not serve the port',
  }
}

function homelessRefusal(service: string, { port }: PlacedPort): Refusal {
  return {
    object: objectText('Service', service),
    field: 'spec.externalTrafficPolicy',
    value: 'Local',
    reason: `${port.displayName} (${port.family}) has no ClusterIP: pods and processes of this node also reach only its endpoints on this node`,
  }
}

const BALANCE_FIELD = `metadata.annotations[${BALANCE_ANNOTATION}]`
const SCHEDULER_FIELD = 'metadata.annotations[kprobe.io/ipvs-scheduler]'

/** IP_VS_SVC_F_SCHED_MH_PORT (linux/ip_vs.h): maglev hashing includes the client's port, as in kube-proxy. */
const MAGLEV_BY_PORT = IP_VS_SVC_F_SCHED2

function serversOf(
  { port, places, privateServer }: PlacedPort,
  surroundings: Surroundings,
): ReadonlyMap<ServerKey, PlacedServer> {
  const servers = new Map<ServerKey, PlacedServer>()
  const rest = restOf(port, surroundings)
  // Several servers share each list.
  const lists: { [name in 'cluster' | 'local']?: ReadonlyMap<string, RealServer> } = {}
  const listOf = (backends: readonly Backend[]) => {
    if (backends.length === 0) return NONE
    const name = backends === port.cluster ? 'cluster' : 'local'
    const list = lists[name] ?? destinationsOf(backends)
    lists[name] = list
    return list
  }
  const add = (
    { protocol, ip, port: number }: VirtualAddress,
    key: ServerKey,
    backends: readonly Backend[],
  ) =>
    servers.set(key, {
      server: { protocol, ip, port: number, ...rest },
      destinations: listOf(backends),
      drainMs: port.tcpDrainMs,
      service: port.service,
      port: port.key,
    })
  for (const place of places) if (!place.hidden) add(place, place.key, place.backends)
  if (privateServer !== undefined) add(privateServer, serverKey(privateServer), port.cluster)
  return servers
}

function restOf(port: PortFrontends, surroundings: Surroundings): Omit<VirtualServer, keyof VirtualAddress> {
  const { family, affinityTimeoutS: timeoutS } = port
  const scheduler = schedulerOf(port, surroundings)
  const persistent = timeoutS > 0 ? IP_VS_SVC_F_PERSISTENT : 0
  const byPort = scheduler === 'mh' && port.balance?.policy !== 'maglev' ? MAGLEV_BY_PORT : 0
  const flags = persistent | byPort
  return { scheduler, flags, timeoutS, netmask: WHOLE_ADDRESS[family] }
}

function schedulerOf(port: PortFrontends, surroundings: Surroundings): string {
  const scheduler = askedScheduler(port, surroundings)
  return surroundings.missingSchedulers.has(scheduler) ? surroundings.scheduler : scheduler
}

/** Gives the scheduler of the annotation, or else the one that has the policy. */
function askedScheduler({ scheduler, balance }: PortFrontends, surroundings: Surroundings): string {
  if (balance === undefined) return scheduler ?? surroundings.scheduler
  const name = scheduler ?? (isHashed(balance) ? 'mh' : surroundings.scheduler)
  return WITH_WEIGHTS[name] ?? name
}

/** The schedulers that ignore weights, and their counterparts. */
const WITH_WEIGHTS: Readonly<Record<string, string>> = { rr: 'wrr', lc: 'wlc' }

/** Makes one refusal for each Service that configures a scheduler which this kernel lacks. */
function schedulerRefusal(
  service: ServiceKey,
  ports: readonly PortFrontends[],
  surroundings: Surroundings,
): Refusal | undefined {
  const { scheduler, missingSchedulers } = surroundings
  const asked = ports.find(
    port =>
      (port.scheduler ?? port.balance) !== undefined &&
      missingSchedulers.has(askedScheduler(port, surroundings)),
  )
  if (asked === undefined) return undefined
  const name = askedScheduler(asked, surroundings)
  const isWritten = asked.scheduler !== undefined || asked.balance === undefined
  return {
    object: objectText('Service', service),
    field: isWritten ? SCHEDULER_FIELD : BALANCE_FIELD,
    value: isWritten ? name : asked.balance.policy,
    reason: `this kernel has no ${isWritten ? 'such scheduler' : `scheduler ${name}`} (module ip_vs_${name}); kprobe uses ${scheduler}`,
  }
}

const NONE: ReadonlyMap<string, RealServer> = new Map()
/** IPVS tools accept weights up to this value. */
const WEIGHT_MAX = 65_535

/** Makes the real servers of endpoints. IPVS has each address and port once. */
function destinationsOf(backends: readonly Backend[]): ReadonlyMap<string, RealServer> {
  const destinations = new Map<string, RealServer>()
  const most = backends.reduce((max, { weight = 1 }) => Math.max(max, weight), 1)
  const scale = Math.min(1, WEIGHT_MAX / most)
  for (const { ip, port, weight: share = 1 } of backends) {
    const weight = Math.max(1, Math.round(share * scale))
    destinations.set(destinationKey({ ip, port }), { ip, port, weight, forwarding: IP_VS_CONN_F_MASQ })
  }
  return destinations
}

export function sameServer(a: PlacedServer, b: PlacedServer): boolean {
  if (a === b) return true
  if (a.port !== b.port || a.drainMs !== b.drainMs || !sameSettings(a.server, b.server)) return false
  if (a.destinations === b.destinations) return true
  if (a.destinations.size !== b.destinations.size) return false
  for (const [key, destination] of a.destinations) {
    const other = b.destinations.get(key)
    if (other === undefined || !sameDestination(destination, other)) return false
  }
  return true
}

/** Makes the elements of a port in the sets and maps of our own table. */
function elementsOf(placed: PlacedPort): readonly Element[] {
  const elements: Element[] = []
  const comment = commentOf(placed.port)
  for (const place of placed.places) {
    if (place.hidden) continue
    const key = place.ip + portKey(place.protocol, place.port)
    const verdict = verdictOf(place)
    if (verdict !== undefined) {
      elements.push({ set: 'verdicts', key, data: verdict, comment })
      continue
    }
    const { clusterHome, localHome, port } = placed
    const { route } = place.frontend
    const goesTo = (set: 'cluster-lists' | 'local-lists', home: VirtualAddress | undefined) => {
      if (home === undefined || (home.ip === place.ip && home.port === place.port)) return
      elements.push({ set, key, data: home.ip + portData(home.port), comment })
    }
    if (route.kind === 'external-cluster' && port.affinityTimeoutS > 0) goesTo('cluster-lists', clusterHome)
    if (route.kind !== 'external-local') continue
    goesTo('cluster-lists', clusterHome)
    if (place.backends.length === 0) elements.push({ set: 'no-local', key, data: undefined, comment })
    else goesTo('local-lists', localHome)
  }
  return elements
}

/**
 * Lets the health checks of load balancers reach the health check node port at the balanced address itself.
 * That port belongs to a process of this node, and all other ports of a bound address are hidden. A Service
 * port with the same number at a shared address takes precedence.
 */
function healthCheckElements(
  { healthCheck, ports }: ServiceFrontends,
  { family, addresses }: { readonly family: Family; readonly addresses: ReadonlySet<Ip> },
): readonly Element[] {
  if (healthCheck === undefined) return []
  const elements = new Map<Ip, Element>()
  for (const port of ports)
    for (const { kind, ip } of port.family === family ? port.frontends : []) {
      if (kind !== 'LoadBalancerIP' || ip === undefined || !addresses.has(ip)) continue
      const key = ip + portKey('TCP', healthCheck.port)
      elements.set(ip, { set: 'health-checks', key, data: undefined, comment: commentOf(port) })
    }
  for (const { protocol, frontends } of ports)
    for (const { ip, port } of frontends)
      if (ip !== undefined && protocol === 'TCP' && port === healthCheck.port) elements.delete(ip)
  return [...elements.values()]
}

/** Gives the verdict for every packet to a place; undefined where IPVS balances. */
function verdictOf({ frontend: { route }, backends }: Place): Verdict | undefined {
  switch (route.kind) {
    case 'reject':
      return GOTO_REJECT
    case 'drop':
      return GOTO_NO_LOCAL
    case 'internal':
      if (backends.length > 0) return undefined
      return route.over === 'local' ? GOTO_NO_LOCAL : GOTO_REJECT
    case 'external-cluster':
      return backends.length > 0 ? undefined : GOTO_REJECT
    case 'external-local':
      return undefined
  }
}

/** Receives each entry that a Service needs. Some entries arrive twice. */
type EntrySink = (set: string, entry: IpsetEntry) => void

/** Adds the entries of kube-proxy's sets for a Service (pkg/proxy/ipvs, syncProxyRules), without the addresses. */
function addEntries(service: ServiceFrontends, placed: readonly PlacedPort[], sink: EntrySink): void {
  for (const ofPort of placed) {
    for (const place of ofPort.places) addPlace(place, sink)
    addLoopBack(ofPort, sink)
  }
  const { healthCheck } = service
  if (healthCheck === undefined) return
  for (const family of FAMILIES)
    if (healthCheck.local[family] !== undefined)
      sink(setName('HEALTH-CHECK-NODE-PORT', family), { port: healthCheck.port })
}

function addPlace(place: Place, sink: EntrySink): void {
  const { protocol, ip, frontend } = place
  const family = familyOf(ip)
  const entry = entryAt(place)
  const isLocal = frontend.route.kind === 'external-local'
  const add = (stem: SetStem, its: IpsetEntry) => sink(setName(stem, family), its)
  switch (frontend.kind) {
    case 'ClusterIP':
      add('CLUSTER-IP', entry)
      return
    case 'ExternalIP':
      add(isLocal ? 'EXTERNAL-IP-LOCAL' : 'EXTERNAL-IP', entry)
      return
    case 'LoadBalancerIP':
      add('LOAD-BALANCER', entry)
      if (isLocal) add('LOAD-BALANCER-LOCAL', entry)
      addRanges(frontend, { ip, entry, family }, sink)
      return
    case 'NodePort': {
      const sets = NODE_PORT_SETS[protocol]
      const its = nodePortEntry(place)
      add(sets.all, its)
      if (isLocal) add(sets.local, its)
      return
    }
  }
}

/** Adds the source ranges. A set of its own allows the node, which connects to a bound address from that address. */
function addRanges(
  { sourceRanges }: Frontend,
  { ip, entry, family }: { readonly ip: Ip; readonly entry: IpsetEntry; readonly family: Family },
  sink: EntrySink,
): void {
  if (sourceRanges === undefined) return
  sink(setName('LOAD-BALANCER-FW', family), entry)
  const ranges = setName('LOAD-BALANCER-SOURCE-CIDR', family)
  for (const range of sourceRanges) {
    if (range.ip === ip && range.bits === ip.length * 8) continue
    for (const half of halves(range)) sink(ranges, { ...entry, ip2: half.ip, prefix2: half.bits })
  }
  if (anyContains(sourceRanges, ip)) sink(setName('LOAD-BALANCER-SOURCE-IP', family), { ...entry, ip2: ip })
}

/** Splits a range of length 0 into its halves, because a hash of networks cannot hold it. */
function halves(range: Cidr): readonly Cidr[] {
  if (range.bits > 0) return [range]
  const rest = '\0'.repeat(range.ip.length - 1)
  return [
    { ip: `\0${rest}`, bits: 1 },
    { ip: `\x80${rest}`, bits: 1 },
  ]
}

/** Adds the endpoints on this node, which may connect to themselves (hairpin). */
function addLoopBack({ port: { family, protocol, cluster, local } }: PlacedPort, sink: EntrySink): void {
  const set = setName('LOOP-BACK', family)
  const add = ({ ip, port }: Backend) => sink(set, { ...entryAt({ ip, protocol, port }), ip2: ip })
  for (const backend of cluster) if (backend.local) add(backend)
  for (const backend of local) if (backend.local) add(backend)
}
