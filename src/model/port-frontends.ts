import { joined } from '../base/collections.ts'
import {
  anyContains,
  type Cidr,
  type Family,
  familyOf,
  formatIp,
  formatIpPort,
  hostCidr,
  type Ip,
  mergeCidrs,
} from '../base/ip.ts'
import {
  type AddressOwnership,
  addressPlace,
  clusterPortOwner,
  nodePortPlace,
  placeOwner,
  whyNotCaught,
} from './claims.ts'
import {
  type Candidate,
  externalRoute,
  internalRoute,
  needsOf,
  type Survey,
  selectBackends,
  survey,
} from './endpoint-choice.ts'
import { type Findings, refuse } from './fields.ts'
import type { Frontend, PortFrontends, Route } from './frontend.ts'
import { apiConflict, isTaken } from './reserved.ts'
import type { PortBalance, Service, ServicePortSpec, SilentEndpoint, SliceList } from './service.ts'

export interface ServiceWork {
  readonly ownership: AddressOwnership
  readonly service: Service
  readonly findings: Findings
  readonly externals: readonly External[]
  /** See takenKeys. */
  readonly taken: ReadonlySet<string> | undefined
  readonly slices: SliceList
  /** Undefined when there is only one port. */
  readonly firstPorts: FirstPorts | undefined
  readonly balance: PortBalance | undefined
  /** Silent endpoints that are to get no connections; undefined for none. */
  readonly silent: readonly SilentEndpoint[] | undefined
  /** Another Service may have a ClusterIP of this one. */
  readonly isContested: boolean
}

interface PortWork {
  readonly port: ServicePortSpec
  readonly family: Family
  /** Undefined for a headless Service. */
  readonly clusterIp: Ip | undefined
  readonly among: readonly Candidate[]
}

/** Undefined when others have every place that the port claims. */
export function resolvePort(work: ServiceWork, at: PortWork): PortFrontends | undefined {
  const { service, ownership, balance } = work
  const silent = work.silent?.filter(its => its.protocol === at.port.protocol)
  const { port, family, among } = at
  const found = survey(among, ownership.here)
  const frontends = frontendsOf(work, at, found)
  if (frontends.length === 0) return undefined
  const selecting = { among, found, place: ownership.here, balance, silent }
  const lists = selectBackends(selecting, needsOf(frontends))
  const { name, protocol } = port
  const displayName = name === '' ? service.key : `${service.key}:${name}`
  return {
    key: joined([service.key, ':', name, '/', protocol, '/', family]),
    displayName,
    service: service.key,
    family,
    protocol,
    affinityTimeoutS: service.affinityTimeoutS,
    scheduler: service.ipvsScheduler,
    balance,
    tcpDrainMs: protocol === 'TCP' ? service.tcpDrainMs : undefined,
    frontends,
    cluster: lists.cluster,
    local: lists.local,
  }
}

/** The frontends of a port in one family, without those that another port or Service has. */
function frontendsOf(work: ServiceWork, at: PortWork, found: Survey): readonly Frontend[] {
  const { service, externals } = work
  const { clusterIp: ip, port: spec } = at
  const { port, nodePort } = spec
  const frontends: Frontend[] = []
  if (hasClusterIp(work, at))
    frontends.push({
      kind: 'ClusterIP',
      ip,
      port,
      route: internalRoute(service, found),
      sourceRanges: undefined,
    })
  const route = externalRoute(service, found)
  if (hasNodePort(work, at))
    frontends.push({ kind: 'NodePort', ip: undefined, port: nodePort, route, sourceRanges: undefined })
  for (const its of externals) {
    const { kind, ip, sourceRanges, writtenRanges } = its
    if (familyOf(ip) !== at.family) continue
    // An address that is refused for itself is not claimed: another claimant of it is no rival.
    if (!isFree(work, at, its) || !leavesApi(work, at, { external: its, route })) continue
    if (!hasExternal(work, at, its)) continue
    frontends.push({ kind, ip, port, route, sourceRanges, ...(writtenRanges && { writtenRanges }) })
  }
  return frontends
}

function hasClusterIp(work: ServiceWork, { port, clusterIp }: PortWork): boolean {
  const { ownership, service } = work
  if (clusterIp === undefined) return false
  const twin = twinOf(work, port, numberClaim)
  const rival =
    twin ?? (work.isContested ? nameOf(clusterPortOwner(ownership, service, clusterIp, port)) : undefined)
  if (rival === undefined) return true
  refuseContested(work, 'spec.clusterIPs', `${formatIpPort(clusterIp, port.port)}/${port.protocol}`, rival)
  return false
}

function hasNodePort(work: ServiceWork, { port, family, clusterIp }: PortWork): boolean {
  if (port.nodePort === 0 || clusterIp === undefined) return false
  const place = nodePortPlace(family, port.protocol, port.nodePort)
  const rival = twinOf(work, port, nodePortClaim) ?? nameOf(placeOwner(work.ownership, work.service, place))
  if (rival === undefined) return true
  refuseContested(work, `spec.ports[${port.name}].nodePort`, `${port.nodePort}/${port.protocol}`, rival)
  return false
}

function hasExternal(work: ServiceWork, { port }: PortWork, { kind, ip }: External): boolean {
  const rival = twinOf(work, port, numberClaim) ?? nameOf(externalOwner(work, port, ip))
  if (rival === undefined) return true
  refuseContested(work, fieldOf(kind), `${formatIpPort(ip, port.port)}/${port.protocol}`, rival)
  return false
}

/** Finds the Service that has the port; at an address of the Node, also one with a NodePort of that number. */
function externalOwner(
  { ownership, service }: ServiceWork,
  port: ServicePortSpec,
  ip: Ip,
): Service | undefined {
  const owner = placeOwner(ownership, service, addressPlace(ip, port.protocol, port.port))
  if (owner !== undefined || !ownership.here.nodeIps.has(ip)) return owner
  return placeOwner(ownership, service, nodePortPlace(familyOf(ip), port.protocol, port.port))
}

/** Refuses an external IP at whose port a process of this node listens: the Service would take that process's clients. */
function isFree(
  { taken, ownership, findings }: ServiceWork,
  { port }: PortWork,
  { kind, ip }: External,
): boolean {
  const at = { ip, protocol: port.protocol, port: port.port }
  if (kind !== 'ExternalIP' || !isTaken(taken, at, ownership.here.options.allowedExternalCidrs)) return true
  const value = `${formatIpPort(ip, port.port)}/${port.protocol}`
  refuse(findings, fieldOf(kind), value, LISTENED_AT)
  return false
}

const LISTENED_AT = 'a process of this node listens there; allow it with --allowed-external-cidrs'

/** Refuses an address that would take kprobe's own connections to the API server. Returns false for it. */
function leavesApi(
  { ownership: { here }, findings }: ServiceWork,
  { port }: PortWork,
  { external, route }: { readonly external: External; readonly route: Route },
): boolean {
  const { kind, ip, sourceRanges } = external
  const conflict = apiConflict(here.apiServers, ip, port)
  if (conflict === undefined) return true
  const nodeIp = here.primaryIps[familyOf(ip)]
  const isOpen = sourceRanges === undefined || (nodeIp !== undefined && anyContains(sourceRanges, nodeIp))
  // A load balancer in front of API servers: its controller wrote the address.
  if (kind === 'LoadBalancerIP' && conflict === 'port' && isOpen && route.kind !== 'reject') return true
  const value = `${formatIpPort(ip, port.port)}/${port.protocol}`
  refuse(findings, fieldOf(kind), value, conflict === 'port' ? AT_API[kind] : API_ADDRESS)
  return false
}

const AT_API: Readonly<Record<External['kind'], string>> = {
  ExternalIP:
    'the API server answers there; capturing it would cut off kprobe and this node from the API server',
  LoadBalancerIP:
    'the API server answers there; captured only while the Service has ready endpoints and its source ranges include this node',
}
/** The reason in modes that bind addresses. */
export const API_ADDRESS =
  'the API server answers at this address; binding it would cut off this node from the API server'

function refuseContested(work: ServiceWork, field: string, value: string, rival: string): void {
  refuse(work.findings, field, value, `already claimed by ${rival}, which comes first`)
}

function nameOf(owner: Service | undefined): string | undefined {
  return owner === undefined ? undefined : `Service ${owner.key}`
}

/** The first port of the Service that makes each claim. Ports may be many, and hostile. */
type FirstPorts = ReadonlyMap<string, ServicePortSpec>

export function firstPortsOf(service: Service): FirstPorts {
  const first = new Map<string, ServicePortSpec>()
  for (const port of service.ports) {
    for (const claim of [numberClaim(port), nodePortClaim(port)])
      if (!first.has(claim)) first.set(claim, port)
  }
  return first
}

function numberClaim(port: ServicePortSpec): string {
  return `${port.port}/${port.protocol}`
}

function nodePortClaim(port: ServicePortSpec): string {
  return `NodePort ${port.nodePort}/${port.protocol}`
}

/** The earlier port of the same Service that claims the same. */
function twinOf(
  { firstPorts }: ServiceWork,
  port: ServicePortSpec,
  claimOf: (port: ServicePortSpec) => string,
): string | undefined {
  if (firstPorts === undefined) return undefined
  const first = firstPorts.get(claimOf(port))
  return first === undefined || first === port ? undefined : `port "${first.name}" of this Service`
}

/** An address beside the ClusterIP at which all ports of a Service are reached. */
interface External {
  readonly kind: 'ExternalIP' | 'LoadBalancerIP'
  readonly ip: Ip
  readonly sourceRanges: readonly Cidr[] | undefined
  readonly writtenRanges: readonly Cidr[] | undefined
}

/** The external and load-balancer addresses that may be caught, each once; the others are refused. */
export function externalsOf(
  ownership: AddressOwnership,
  service: Service,
  findings: Findings,
): readonly External[] {
  if (service.loadBalancerIps.length + service.externalIps.length === 0) return []
  const caught = (kind: External['kind'], ips: readonly Ip[]) =>
    ips.filter(ip => {
      const reason = whyNotCaught(ownership.here, kind, ip) ?? whyNotFree(ownership, service, ip)
      if (reason !== undefined) refuse(findings, fieldOf(kind), formatIp(ip), reason)
      return reason === undefined
    })
  const balanced = caught('LoadBalancerIP', service.loadBalancerIps)
  const external = caught('ExternalIP', service.externalIps)
  const ranges = {
    IPv4: clientsOf(ownership, service, 'IPv4', balanced),
    IPv6: clientsOf(ownership, service, 'IPv6', balanced),
  }
  return [
    // An address that is both is the one that source ranges guard, whatever becomes of it.
    ...external
      .filter(ip => !service.loadBalancerIps.includes(ip))
      .map((ip): External => ({ kind: 'ExternalIP', ip, ...OPEN })),
    ...balanced.map((ip): External => ({ kind: 'LoadBalancerIP', ip, ...ranges[familyOf(ip)] })),
  ]
}

type Clients = Pick<External, 'sourceRanges' | 'writtenRanges'>
const OPEN: Clients = { sourceRanges: undefined, writtenRanges: undefined }

/** A ClusterIP cannot be claimed as an external address: CVE-2020-8554. */
function whyNotFree(ownership: AddressOwnership, service: Service, ip: Ip): string | undefined {
  const owners = ownership.claims.clusterIps.get(ip)
  if (owners === undefined) return undefined
  const other = owners.find(key => key !== service.key)
  return other === undefined ? 'the ClusterIP of this Service' : `the ClusterIP of Service ${other}`
}

function fieldOf(kind: External['kind']): string {
  return kind === 'ExternalIP' ? 'spec.externalIPs' : 'status.loadBalancer.ingress'
}

/**
 * Gives the clients that may connect to the load-balancer addresses of a family. When this node may, so may the
 * addresses themselves: they are the source of what the node sends to them once they are bound to it.
 */
function clientsOf(
  ownership: AddressOwnership,
  service: Service,
  family: Family,
  balanced: readonly Ip[],
): Clients {
  const sourceRanges = service.sourceRanges.filter(cidr => familyOf(cidr.ip) === family)
  if (sourceRanges.length === 0 || sourceRanges.some(cidr => cidr.bits === 0)) return OPEN
  const writtenRanges = service.writtenRanges.filter(cidr => familyOf(cidr.ip) === family)
  const nodeIp = ownership.here.primaryIps[family]
  if (nodeIp === undefined || !anyContains(sourceRanges, nodeIp)) return { sourceRanges, writtenRanges }
  const own = balanced.filter(ip => familyOf(ip) === family).map(hostCidr)
  return {
    sourceRanges: mergeCidrs([...sourceRanges, ...own]),
    writtenRanges: [...writtenRanges, ...own],
  }
}
