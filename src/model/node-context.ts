import { cut, listFor, trimmed } from '../base/collections.ts'
import {
  anyContains,
  type Cidr,
  compareIps,
  contains,
  FAMILIES,
  type Family,
  familyOf,
  formatCidr,
  formatIp,
  type Ip,
  isLinkLocal,
  isLoopback,
  isUnspecified,
} from '../base/ip.ts'
import type { Backend, Frontend, FrontendTable, NodePortAddresses, PortFrontends, Route } from './frontend.ts'
import type { PortEndpoints } from './port-endpoints.ts'
import { API_SERVICE, type ApiServers, apiServersOf } from './reserved.ts'
import type { CostRates, Endpoint, EndpointTraits, Service } from './service.ts'
import type { NodeInfo, Snapshot } from './snapshot.ts'

/** The inputs of resolving besides the objects of the sources. */
export interface ResolveOptions {
  /** Lower-cased name of this node. */
  readonly nodeName: string
  /** Handle the Services that carry this value in service.kubernetes.io/service-proxy-name; undefined: those without. */
  readonly serviceProxyName: string | undefined
  readonly nodePortSelection: NodePortSelection
  /** Give NodePorts that answer everywhere as a list: every address of this machine but loopback and link-local ones. */
  readonly listNodePortAddresses?: boolean
  /** External and load-balancer addresses become addresses of a device of this node, with all their ports. */
  readonly bindsExternalIps?: boolean
  /** With cidrs, loopback addresses that they hold are among the addresses: in IPv4, which can be made to route them. */
  readonly loopbackNodePorts?: boolean
  /** A forwarder of this process serves node ports at localhost where the selection says so by name (KEP-6032). */
  readonly forwardsLocalhost?: boolean
  /** If not empty, external IPs outside these are refused. */
  readonly allowedExternalCidrs: readonly Cidr[]
  /** If not empty, load-balancer addresses outside these are refused. */
  readonly allowedLoadBalancerCidrs: readonly Cidr[]
  /** Without it every external IP is refused (KEP-5707). */
  readonly allowServiceExternalIps: boolean
  /** Stands for the Node's primary address of its family, unless it is unspecified. */
  readonly bindAddress: Ip | undefined
  /** The memory that Services may take together, and what each takes; undefined for no bound. */
  readonly memory?: ServiceMemory | undefined
}

export interface ServiceMemory {
  readonly bytes: number
  readonly rates: CostRates
}

/** Addresses at which NodePorts should answer; nothing at all means everywhere. */
export interface NodePortSelection {
  /** The Node's first address of each family. */
  readonly primary: boolean
  readonly cidrs: readonly Cidr[]
}

/** The point of view that all Services are resolved from. */
export interface NodeContext {
  readonly options: ResolveOptions
  readonly nodeName: string
  /** This node's own Node object, if it is known. */
  readonly node: NodeInfo | undefined
  /** Empty when unknown. */
  readonly zone: string
  readonly nodeIps: ReadonlySet<Ip>
  readonly primaryIps: Readonly<Record<Family, Ip | undefined>>
  /** No Service may take these addresses. */
  readonly apiServers: ApiServers
  /** Equal for points of view from which every Service looks the same; `apiServers` is compared separately. */
  readonly fingerprint: string
}

/** The point of view depends on these parts of a Snapshot. */
type NodeFacts = Pick<Snapshot, 'node' | 'slices' | 'apiEndpoints' | 'localIps'>

export function nodeContextOf(
  options: ResolveOptions,
  { node, slices, apiEndpoints, localIps }: NodeFacts,
): NodeContext {
  // A Node object of another name says nothing about this node.
  const own = node?.name === options.nodeName ? node : undefined
  const { bindAddress } = options
  const isSpecific = bindAddress !== undefined && !isUnspecified(bindAddress)
  const ips = isSpecific ? [bindAddress, ...(own?.ips ?? [])] : (own?.ips ?? [])
  const zone = own?.zone ?? ''
  const apiServers = apiServersOf({
    dialed: apiEndpoints,
    slices: slices.get(API_SERVICE) ?? [],
    binds: options.bindsExternalIps === true,
    localIps,
  })
  const fingerprint = JSON.stringify([
    options.nodeName,
    zone,
    ips.map(formatIp),
    options.serviceProxyName ?? null,
    options.allowedExternalCidrs.map(formatCidr),
    options.allowedLoadBalancerCidrs.map(formatCidr),
    options.allowServiceExternalIps,
    own?.podCidrs.map(formatCidr) ?? [],
    options.memory ?? null,
  ])
  return {
    options,
    nodeName: options.nodeName,
    node: own,
    zone,
    nodeIps: new Set(ips),
    primaryIps: primaryIps(ips),
    apiServers,
    fingerprint,
  }
}

function primaryIps(ips: readonly Ip[]): Record<Family, Ip | undefined> {
  const [v4, v6] = FAMILIES.map(family => ips.find(ip => familyOf(ip) === family))
  return { IPv4: v4, IPv6: v6 }
}

/** Tests whether this proxy serves the Service, which the label service-proxy-name may assign to another proxy. */
export function isOurs(here: NodeContext, service: Service): boolean {
  return service.type !== 'ExternalName' && service.proxyName === here.options.serviceProxyName
}

/**
 * Addresses at which node ports answer (kube-proxy.md 1.4). A family for which nothing is selected, or everything, is
 * not restricted; loopback addresses are not among them but with loopbackNodePorts. With listNodePortAddresses that is a list, too.
 * With `primary` they answer nowhere while no address of the Node is known: kube-proxy then opens them on all addresses.
 */
export function nodePortAddresses(
  here: NodeContext,
  localIps: readonly Ip[],
): Readonly<Record<Family, NodePortAddresses>> {
  return { IPv4: addressesOf(here, localIps, 'IPv4'), IPv6: addressesOf(here, localIps, 'IPv6') }
}

/** The address of each family at which node ports are forwarded. */
export const LOCALHOST: Readonly<Record<Family, Ip>> = {
  IPv4: '\x7f\0\0\x01',
  IPv6: `${'\0'.repeat(15)}\x01`,
}

/**
 * Gives the families for which a selection names LOCALHOST: it has a range of loopback addresses that holds it. A range of
 * all addresses does not count (KEP-6032).
 */
export function familiesAtLocalhost({ cidrs }: NodePortSelection): readonly Family[] {
  return FAMILIES.filter(family =>
    cidrs.some(cidr => isLoopback(cidr.ip) && cidr.bits > 0 && contains(cidr, LOCALHOST[family])),
  )
}

/** Gives the families whose node ports are forwarded at LOCALHOST; an empty object for none. */
export function forwardedAtLocalhost({ options }: NodeContext): Pick<FrontendTable, 'forwardedAtLocalhost'> {
  if (options.forwardsLocalhost !== true) return {}
  const families = familiesAtLocalhost(options.nodePortSelection)
  return families.length === 0 ? {} : { forwardedAtLocalhost: families }
}

/** Gives the endpoints of a port for clients at localhost: with policy Local those of this node alone. */
export function backendsAtLocalhost({ frontends, cluster, local }: PortFrontends): readonly Backend[] {
  switch (frontends.find(({ kind }) => kind === 'NodePort')?.route.kind) {
    case 'external-cluster':
    case 'internal':
      return cluster
    case 'external-local':
      return local
    case 'reject':
    case 'drop':
    case undefined:
      return NO_BACKENDS
  }
}

const NO_BACKENDS: readonly Backend[] = []
const ALL: NodePortAddresses = { kind: 'all' }
const NONE: NodePortAddresses = { kind: 'only', ips: [] }

function addressesOf(here: NodeContext, localIps: readonly Ip[], family: Family): NodePortAddresses {
  const selection = here.options.nodePortSelection
  const cidrs = selection.cidrs.filter(cidr => familyOf(cidr.ip) === family)
  const primary = selection.primary ? usablePrimary(here, family) : undefined
  if (selection.primary && here.nodeIps.size === 0 && cidrs.length === 0) return NONE
  if ((primary === undefined && cidrs.length === 0) || cidrs.some(cidr => cidr.bits === 0)) {
    return here.options.listNodePortAddresses === true ? everyAddress(localIps, family) : ALL
  }
  const withLoopback = family === 'IPv4' && here.options.loopbackNodePorts === true
  const ips = localIps.filter(ip => (withLoopback || !isLoopback(ip)) && anyContains(cidrs, ip))
  if (primary !== undefined) ips.push(primary)
  return { kind: 'only', ips: [...new Set(ips)].sort(compareIps) }
}

function everyAddress(localIps: readonly Ip[], family: Family): NodePortAddresses {
  const ips = localIps.filter(ip => familyOf(ip) === family && !isLoopback(ip) && !isLinkLocal(ip))
  return { kind: 'only', ips: ips.sort(compareIps) }
}

function usablePrimary(here: NodeContext, family: Family): Ip | undefined {
  const ip = here.primaryIps[family]
  return ip === undefined || isLoopback(ip) ? undefined : ip
}

/** Hints narrow the ready endpoints in these ways (KEP-2433, KEP-3015). */
type TopologyMode = 'none' | 'PreferSameNode' | 'PreferSameZone'

/** The node and zone from which endpoints are chosen. */
interface Place {
  readonly nodeName: string
  /** Empty when unknown. */
  readonly zone: string
}

/** Facts about all endpoints of a port, which must be known before any one of them can be judged. */
export interface Survey {
  readonly topology: TopologyMode
  readonly ready: boolean
  /** Some endpoint serves while it terminates. */
  readonly draining: boolean
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
    const traits = endpoints[index]?.traits
    if (traits === undefined) continue
    const isLocal = traits.nodeName === place.nodeName
    if (traits.conditions.ready) {
      ready = true
      localReady ||= isLocal
    }
    if (!isDraining(traits)) continue
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
    const traits = endpoints[index]?.traits
    if (traits?.conditions.ready !== true) continue
    const { forNodes, forZones } = traits.hints
    hasNodeHints &&= forNodes.length > 0
    hasZoneHints &&= forZones.length > 0
    if (!hasNodeHints && !hasZoneHints) return 'none'
    isNodeNamed ||= forNodes.includes(place.nodeName)
    isZoneNamed ||= forZones.includes(place.zone)
  }
  if (hasNodeHints && isNodeNamed) return 'PreferSameNode'
  return hasZoneHints && isZoneNamed ? 'PreferSameZone' : 'none'
}

const REJECT: Route = { kind: 'reject' }
const DROP: Route = { kind: 'drop' }
const OVER_CLUSTER: Route = { kind: 'internal', over: 'cluster' }
const OVER_LOCAL: Route = { kind: 'internal', over: 'local' }
const EXTERNAL_CLUSTER: Route = { kind: 'external-cluster' }
const EXTERNAL_LOCAL: Route = { kind: 'external-local' }

/** Gives the route of clients at the ClusterIP. */
export function internalRoute(service: Service, found: Survey): Route {
  if (!hasAny(found)) return REJECT
  if (service.internalTrafficPolicy === 'Cluster') return OVER_CLUSTER
  return found.localReady || found.localDraining ? OVER_LOCAL : DROP
}

/** Gives the route of clients at other addresses. Policy Local without a local endpoint is an empty list, not a route. */
export function externalRoute(service: Service, found: Survey): Route {
  if (!hasAny(found)) return REJECT
  return service.externalTrafficPolicy === 'Local' ? EXTERNAL_LOCAL : EXTERNAL_CLUSTER
}

function hasAny(found: Survey): boolean {
  return found.ready || found.draining
}

/** The lists of endpoints that frontends read. */
interface ListNeeds {
  readonly cluster: boolean
  readonly local: boolean
}

const NOTHING: ListNeeds = { cluster: false, local: false }
const CLUSTER: ListNeeds = { cluster: true, local: false }
const LOCAL: ListNeeds = { cluster: false, local: true }
const BOTH: ListNeeds = { cluster: true, local: true }

export function needsOf(frontends: readonly Frontend[]): ListNeeds {
  let needs = NOTHING
  for (let index = 0; index < frontends.length; index++) {
    const route = frontends[index]?.route
    const own = route === undefined ? NOTHING : needsForRoute(route)
    if (own === BOTH) return BOTH
    if (own === NOTHING) continue
    if (needs !== NOTHING && needs !== own) return BOTH
    needs = own
  }
  return needs
}

export function needsForRoute(route: Route): ListNeeds {
  switch (route.kind) {
    case 'reject':
    case 'drop':
      return NOTHING
    case 'external-local':
      return BOTH
    case 'external-cluster':
      return CLUSTER
    case 'internal':
      return route.over === 'local' ? LOCAL : CLUSTER
  }
}

/** Says whether an endpoint is in one of the two lists of a port. The reason follows the words "because it is". */
export interface Verdict {
  readonly isIn: boolean
  readonly reason: string
}

const READY: Verdict = { isIn: true, reason: 'ready' }
const HINTED_TO_NODE: Verdict = { isIn: true, reason: 'ready and hinted to this node' }
const HINTED_TO_ZONE: Verdict = { isIn: true, reason: 'ready and hinted to the zone of this node' }
const HINTED_TO_OTHER_NODES: Verdict = { isIn: false, reason: 'ready but hinted to other nodes' }
const HINTED_TO_OTHER_ZONES: Verdict = { isIn: false, reason: 'ready but hinted to other zones' }
const NOT_READY: Verdict = { isIn: false, reason: 'not ready' }
const TERMINATED: Verdict = { isIn: false, reason: 'terminating and no longer serving' }
const DRAINING_NEEDED: Verdict = {
  isIn: true,
  reason: 'terminating but still serving, and no endpoint is ready',
}
const DRAINING_SPARE: Verdict = { isIn: false, reason: 'terminating while another endpoint is ready' }
const ELSEWHERE: Verdict = { isIn: false, reason: 'not on this node' }
const LOCAL_DRAINING_NEEDED: Verdict = {
  isIn: true,
  reason: 'terminating but still serving, and no endpoint on this node is ready',
}
const LOCAL_DRAINING_SPARE: Verdict = {
  isIn: false,
  reason: 'terminating while another endpoint on this node is ready',
}

/** Policy Cluster: the ready endpoints that hints leave; without any, those that still serve while terminating. */
export function clusterVerdict(traits: EndpointTraits, found: Survey, place: Place): Verdict {
  if (traits.conditions.ready) return hintVerdict(traits, found, place)
  if (!isDraining(traits)) return traits.conditions.terminating ? TERMINATED : NOT_READY
  return found.ready ? DRAINING_SPARE : DRAINING_NEEDED
}

/** Policy Local: the ready endpoints of this node whatever their hints; without any, those that still serve. */
export function localVerdict(traits: EndpointTraits, found: Survey, place: Place): Verdict {
  if (traits.nodeName !== place.nodeName) return ELSEWHERE
  if (traits.conditions.ready) return READY
  if (!isDraining(traits)) return traits.conditions.terminating ? TERMINATED : NOT_READY
  return found.localReady ? LOCAL_DRAINING_SPARE : LOCAL_DRAINING_NEEDED
}

function hintVerdict({ hints }: EndpointTraits, found: Survey, place: Place): Verdict {
  switch (found.topology) {
    case 'none':
      return READY
    case 'PreferSameNode':
      return hints.forNodes.includes(place.nodeName) ? HINTED_TO_NODE : HINTED_TO_OTHER_NODES
    case 'PreferSameZone':
      return hints.forZones.includes(place.zone) ? HINTED_TO_ZONE : HINTED_TO_OTHER_ZONES
  }
}

interface Selecting {
  readonly among: PortEndpoints
  readonly found: Survey
  readonly place: Place
  /** The list of an earlier version, whose endpoints are used again. */
  readonly former: readonly Backend[]
}

/** The two lists a port may need; a list that no frontend uses stays empty. */
export function selectBackends(
  selecting: Selecting,
  needs: ListNeeds,
): Pick<PortFrontends, 'cluster' | 'local'> {
  const { among, found, place, former } = selecting
  const { endpoints } = among
  const cluster = listFor<Backend>(needs.cluster ? endpoints.length : 0)
  const local: Backend[] = []
  let count = 0
  let at = 0
  for (let index = 0; index < endpoints.length; index++) {
    const endpoint = endpoints[index]
    if (endpoint === undefined) continue
    const { ip, traits } = endpoint
    const inCluster = needs.cluster && clusterVerdict(traits, found, place).isIn
    const inLocal = needs.local && localVerdict(traits, found, place).isIn
    if (!inCluster && !inLocal) continue
    const port = portAt(among, index)
    const isLocal = traits.nodeName === place.nodeName
    at = indexFrom(former, at, ip)
    const known = former[at]
    const isKnown = known?.ip === ip && known.port === port && known.local === isLocal
    const backend = isKnown ? known : { ip, port, local: isLocal }
    if (inCluster) cluster[count++] = backend
    if (inLocal) local.push(backend)
  }
  return { cluster: cut(cluster, count), local: trimmed(local) }
}

/** The index of the first back end from `at` on that is at the address or behind it. */
function indexFrom(list: readonly Backend[], at: number, ip: Ip): number {
  let index = at
  for (let next = list[index]; next !== undefined && next.ip !== ip && next.ip < ip; next = list[index])
    index++
  return index
}

function portAt({ ports }: PortEndpoints, index: number): number {
  return typeof ports === 'number' ? ports : (ports[index] ?? 0)
}

/** Serves what it has while it goes away. */
function isDraining({ conditions }: EndpointTraits): boolean {
  return conditions.serving && conditions.terminating
}
