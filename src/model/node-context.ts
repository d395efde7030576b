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
import type { Backend, FrontendTable, NodePortAddresses, PortFrontends } from './frontend.ts'
import { API_SERVICE, type ApiServers, apiServersOf } from './reserved.ts'
import type { Balancing, CostRates, Service } from './service.ts'
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
  /** A forwarder of this process serves node ports at localhost if the selection names localhost (KEP-6032). */
  readonly forwardsLocalhost?: boolean
  /** Undefined where nothing balances: annotations about it are ignored. */
  readonly balancing?: Balancing | undefined
  /** External IPs outside these ranges are refused; an empty list restricts none. */
  readonly allowedExternalCidrs: readonly Cidr[]
  /** Load-balancer addresses outside these ranges are refused; an empty list restricts none. */
  readonly allowedLoadBalancerCidrs: readonly Cidr[]
  /** False refuses every external IP (KEP-5707). */
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
  // A Node object of another name does not describe this node.
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
    options.balancing ?? null,
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
