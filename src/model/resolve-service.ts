import { FAMILIES, type Family, familyOf, formatIp, type Ip } from '../base/ip.ts'
import { balanceOf, failsOver } from './balance.ts'
import {
  type AddressOwnership,
  clusterIpOwner,
  healthCheckPlaces,
  isContested,
  placeOwner,
  wholePlace,
} from './claims.ts'
import {
  candidatesOf,
  externalRoute,
  needsOf,
  selectBackends,
  survey,
  wholeCandidatesOf,
} from './endpoint-choice.ts'
import { addRefusal, type Findings, NO_REFUSALS, type Refusal, refusalsOf, refuse } from './fields.ts'
import {
  type HealthCheck,
  healthCheckOf,
  type PortFrontends,
  type ServiceFrontends,
  type WholeAddresses,
} from './frontend.ts'
import { isOurs } from './node-context.ts'
import { API_ADDRESS, externalsOf, firstPortsOf, resolvePort, type ServiceWork } from './port-frontends.ts'
import { isApiAddress, takenKeys } from './reserved.ts'
import type { EndpointSlice, Service, SliceList } from './service.ts'

/** Gives what a Service means; undefined when it is another proxy's, or has neither addresses nor refusals. */
export function resolveService(
  ownership: AddressOwnership,
  service: Service,
  slices: SliceList,
): ServiceFrontends | undefined {
  if (!isServed(ownership, service)) return undefined
  const work = begin(ownership, service, slices)
  const members = membersOf(service)
  const ports: PortFrontends[] = []
  for (const port of service.ports)
    for (const member of members) {
      const { name, protocol } = port
      const family = familyOf(member)
      const clusterIp = service.headless === undefined ? member : undefined
      const among = candidatesOf(work.slices, { name, protocol, family })
      const resolved = resolvePort(work, { port, family, clusterIp, among })
      if (resolved !== undefined) ports.push(resolved)
    }
  return complete(work, slices, ports)
}

function isServed({ here }: AddressOwnership, service: Service): boolean {
  const { clusterIps, externalIps, refusals } = service
  // Without a ClusterIP, only headless Services of named proxies have external addresses.
  return clusterIps.length + externalIps.length + refusals.length > 0 && isOurs(here, service)
}

/** An address of each family that the Service is in. */
function membersOf({ clusterIps, externalIps, headless }: Service): readonly Ip[] {
  if (headless === undefined) return clusterIps
  return FAMILIES.flatMap(family => externalIps.find(ip => familyOf(ip) === family) ?? [])
}

function begin(ownership: AddressOwnership, service: Service, slices: SliceList): ServiceWork {
  const findings: Findings = { kind: 'Service', key: service.key, refusals: undefined }
  return {
    ownership,
    service,
    findings,
    externals: externalsOf(ownership, service, findings),
    taken: ownership.listeners.size === 0 ? undefined : takenKeys(ownership.listeners.get(service.key)),
    slices: withoutLoops(slices, service, findings),
    balance: balanceOf(service, ownership.here.options.balancing, findings),
    silent: failsOver(service, ownership.here.options.balancing, findings)
      ? ownership.silent.get(service.key)?.endpoints
      : undefined,
    firstPorts: service.ports.length < 2 ? undefined : firstPortsOf(service),
    isContested: ownership.claims.contested > 0 && isContested(ownership, service),
  }
}

function complete(work: ServiceWork, slices: SliceList, ports: readonly PortFrontends[]): ServiceFrontends {
  const { ownership, service, findings } = work
  const wholes = service.headless === 'whole' ? wholesOf(work) : undefined
  const healthCheck = service.healthCheckNodePort === 0 ? undefined : ownHealthCheck(work)
  return {
    service: service.key,
    clusterIps: work.isContested ? ownClusterIps(ownership, service) : service.clusterIps,
    ports,
    refusals: allRefusals(service, slices, findings),
    wholes,
    healthCheck,
  }
}

/** Undefined where another Service has the port. */
function ownHealthCheck({ ownership, service, slices, findings }: ServiceWork): HealthCheck | undefined {
  for (const place of healthCheckPlaces(service)) {
    const owner = placeOwner(ownership, service, place)
    if (owner === undefined) continue
    const reason = `already claimed by Service ${owner.key}, which comes first`
    refuse(findings, 'spec.healthCheckNodePort', `${service.healthCheckNodePort}/TCP`, reason)
    return undefined
  }
  return healthCheckOf(service, slices, ownership.here.nodeName)
}

function ownClusterIps(ownership: AddressOwnership, service: Service): readonly Ip[] {
  return service.clusterIps.filter(ip => clusterIpOwner(ownership, service, ip) === undefined)
}

/** Collects the refusals of the Service, its slices and the resolver, each once: both families lose one NodePort. */
function allRefusals(service: Service, slices: SliceList, findings: Findings): readonly Refusal[] {
  const found = refusalsOf(findings)
  const known = [...service.refusals, ...slices.flatMap(({ refusals }) => refusals)]
  if (found.length === 0) return known.length === 0 ? NO_REFUSALS : known
  const once = new Map(found.map(its => [`${its.object} ${its.field} ${its.value} ${its.reason}`, its]))
  return [...known, ...once.values()]
}

/** The whole addresses of a headless Service without ports that no older Service has, by family. */
function wholesOf(work: ServiceWork): readonly WholeAddresses[] {
  const ips = work.externals.filter(({ ip }) => isOwn(work, ip)).map(({ ip }) => ip)
  return FAMILIES.flatMap(family => {
    const ofFamily = ips.filter(ip => familyOf(ip) === family)
    return ofFamily.length === 0 ? [] : [wholeOf(work, family, ofFamily)]
  })
}

function wholeOf(
  { ownership, service, slices }: ServiceWork,
  family: Family,
  ips: readonly Ip[],
): WholeAddresses {
  const among = wholeCandidatesOf(slices, family)
  const found = survey(among, ownership.here)
  const route = externalRoute(service, found)
  const lists = selectBackends({ among, found, place: ownership.here }, needsOf([{ route }]))
  return { family, ips, route, affinityTimeoutS: service.affinityTimeoutS, ...lists }
}

function isOwn({ ownership, service, findings }: ServiceWork, ip: Ip): boolean {
  if (isApiAddress(ownership.here.apiServers, ip)) {
    refuse(findings, 'spec.externalIPs', formatIp(ip), API_ADDRESS)
    return false
  }
  const owner = placeOwner(ownership, service, wholePlace(ip))
  if (owner === undefined) return true
  const reason = `already claimed as a whole by Service ${owner.key}, which comes first`
  refuse(findings, 'spec.externalIPs', formatIp(ip), reason)
  return false
}

/**
 * The slices without endpoints that are ClusterIPs of their own Service: traffic would go in circles (CVE-2021-25740).
 * External and load-balancer addresses may be endpoints: they are the node's own where the pods use its network.
 */
export function withoutLoops(slices: SliceList, service: Service, findings?: Findings): SliceList {
  const own = service.clusterIps
  const hasOwn = slices.some(({ endpoints }) => endpoints.some(({ ip }) => own.includes(ip)))
  return hasOwn ? slices.map(slice => withoutOwn(slice, own, findings)) : slices
}

function withoutOwn(slice: EndpointSlice, own: readonly Ip[], findings?: Findings): EndpointSlice {
  const isOther = (_: unknown, at: number): boolean => !own.includes(slice.endpoints[at]?.ip ?? '')
  if (findings !== undefined)
    for (const { ip } of slice.endpoints) if (own.includes(ip)) refuseEndpoint(findings, slice, ip)
  const endpoints = slice.endpoints.filter(isOther)
  const uids = slice.targetUids?.split(',').filter(isOther)
  return uids === undefined ? { ...slice, endpoints } : { ...slice, endpoints, targetUids: uids.join(',') }
}

function refuseEndpoint(findings: Findings, slice: EndpointSlice, ip: Ip): void {
  addRefusal(findings, {
    object: `EndpointSlice ${slice.key}`,
    field: 'endpoints',
    value: formatIp(ip),
    reason: 'the ClusterIP of the Service itself, to which its traffic would return',
  })
}
