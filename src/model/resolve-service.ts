import { listFor } from '../base/compact.ts'
import { FAMILIES, type Family, familyOf, formatIp, type Ip } from '../base/ip.ts'
import { type AddressOwnership, clusterIpOwner, isContested, placeOwner } from './address-ownership.ts'
import { isApiAddress } from './api-server.ts'
import { type Wanted, wholeCandidatesOf } from './candidates.ts'
import { wholePlace } from './claims.ts'
import type { SliceList } from './endpoint.ts'
import { externalsOf } from './externals.ts'
import type { PortFrontends, ServiceFrontends, WholeAddresses } from './frontend.ts'
import { healthCheckOf } from './health-check.ts'
import { takenKeys } from './listeners.ts'
import { isOurs } from './node-context.ts'
import { healthCheckPlaces } from './node-port-places.ts'
import { API_ADDRESS, firstPortsOf, type ServiceWork } from './port-frontends.ts'
import { type Findings, type Refusal, refusalsOf, refuse } from './refusal.ts'
import { externalRoute, needsForRoute, selectBackends, survey } from './select.ts'
import type { Service, ServicePortSpec } from './service.ts'
import { withoutLoops } from './slice-groups.ts'

/** A Service whose ports are resolved one after the other. */
interface OpenService {
  readonly work: ServiceWork
  readonly places: readonly PortPlace[]
  /** So many endpoints that each port takes a while. */
  readonly isLong: boolean
}

/** One of its ports in one family. */
interface PortPlace extends Wanted {
  readonly port: ServicePortSpec
  /** Undefined for a headless Service. */
  readonly clusterIp: Ip | undefined
}

/** Undefined when the Service asks nothing of this node, and there is nothing to say about it. */
export function openService(
  ownership: AddressOwnership,
  service: Service,
  slices: SliceList,
): OpenService | undefined {
  if (!isServed(ownership, service)) return undefined
  return { work: begin(ownership, service, slices), places: placesOf(service), isLong: isLarge(slices) }
}

function placesOf(service: Service): readonly PortPlace[] {
  const { ports, headless } = service
  const members = membersOf(service)
  const places = listFor<PortPlace>(ports.length * members.length)
  let count = 0
  for (let index = 0; index < ports.length; index++) {
    const port = ports[index]
    if (port === undefined) continue
    const { name, protocol } = port
    for (let at = 0; at < members.length; at++) {
      const member = members[at] ?? ''
      const clusterIp = headless === undefined ? member : undefined
      places[count++] = { port, name, protocol, family: familyOf(member), clusterIp }
    }
  }
  return places
}

/** Endpoints that may be resolved without a pause: some milliseconds of work. */
const LARGE = 10_000

function isLarge(slices: SliceList): boolean {
  let endpoints = 0
  for (let index = 0; index < slices.length; index++) endpoints += slices[index]?.endpoints.length ?? 0
  return endpoints > LARGE
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
    taken: takenKeys(ownership.listeners.size === 0 ? undefined : ownership.listeners.get(service.key)),
    slices: withoutLoops(slices, service, findings),
    firstPorts: service.ports.length < 2 ? undefined : firstPortsOf(service),
    isContested: isContested(ownership, service),
  }
}

/** What a Service asks of this node, when its ports are resolved. */
export function closeService(
  work: ServiceWork,
  slices: SliceList,
  ports: readonly PortFrontends[],
): ServiceFrontends {
  const { ownership, service, findings } = work
  const wholes = service.headless === 'whole' ? wholesOf(work) : NO_WHOLES
  const hasHealthCheck = service.healthCheckNodePort !== 0 && hasHealthPort(work)
  const resolved = {
    service: service.key,
    clusterIps: work.isContested ? ownClusterIps(ownership, service) : service.clusterIps,
    ports,
    refusals: allRefusals(service, slices, findings),
  }
  if (service.headless === 'whole') return { ...resolved, wholes }
  const healthCheck = hasHealthCheck
    ? healthCheckOf(service, work.slices, ownership.here.nodeName)
    : undefined
  return healthCheck === undefined ? resolved : { ...resolved, healthCheck }
}

function hasHealthPort({ ownership, service, findings }: ServiceWork): boolean {
  for (const place of healthCheckPlaces(service)) {
    const owner = placeOwner(ownership, service, place)
    if (owner === undefined) continue
    const reason = `already claimed by Service ${owner.key}, which comes first`
    refuse(findings, 'spec.healthCheckNodePort', `${service.healthCheckNodePort}/TCP`, reason)
    return false
  }
  return true
}

const NO_WHOLES: readonly WholeAddresses[] = []

function ownClusterIps(ownership: AddressOwnership, service: Service): readonly Ip[] {
  const own = service.clusterIps.filter(ip => clusterIpOwner(ownership, service, ip) === undefined)
  return own.length === service.clusterIps.length ? service.clusterIps : own
}

/** Collects the refusals of the Service, its slices and the resolver, each once: both families lose one NodePort. */
function allRefusals(service: Service, slices: SliceList, findings: Findings): readonly Refusal[] {
  if (findings.refusals === undefined && !hasRefusals(slices)) return service.refusals
  const found = new Map(
    refusalsOf(findings).map(its => [`${its.object} ${its.field} ${its.value} ${its.reason}`, its]),
  )
  return [service.refusals, ...slices.map(slice => slice.refusals), [...found.values()]].flat()
}

function hasRefusals(slices: SliceList): boolean {
  for (let index = 0; index < slices.length; index++) if (slices[index]?.refusals.length !== 0) return true
  return false
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
  const endpoints = wholeCandidatesOf(slices, family).map(({ endpoint }) => endpoint)
  const found = survey(endpoints, ownership.here)
  const route = externalRoute(service, found)
  const among = { endpoints, ports: 0 }
  const lists = selectBackends({ among, found, place: ownership.here }, needsForRoute(route))
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
