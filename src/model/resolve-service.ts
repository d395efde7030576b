import { cut, listFor, trimmed } from '../base/compact.ts'
import { type Family, familyOf, formatIpPort, type Ip } from '../base/ip.ts'
import { endpointsOf } from './candidates.ts'
import { addressPlace, nodePortPlace } from './claims.ts'
import { type Arena, clusterIpOwner, clusterPortOwner, isContested, placeOwner } from './contest.ts'
import { type External, externalsOf, fieldOf } from './externals.ts'
import type { Frontend, PortFrontends, Route, ServiceFrontends } from './frontend.ts'
import { isOurs } from './here.ts'
import { withoutLoops } from './loops.ts'
import { type Findings, type Refusal, refusalsOf, refuse } from './refusal.ts'
import { externalRoute, internalRoute, needsOf } from './routes.ts'
import { selectBackends } from './select.ts'
import type { Protocol, Service, ServicePortSpec } from './service.ts'
import type { SliceList } from './slice-groups.ts'
import { survey } from './topology.ts'

const NO_SLICES: SliceList = []

/** What a Service asks of this node; undefined when that is nothing and there is nothing to say about it. */
export function resolveService(
  arena: Arena,
  service: Service,
  slices: SliceList = NO_SLICES,
): ServiceFrontends | undefined {
  const isIdle = service.clusterIps.length === 0 && service.refusals.length === 0
  if (isIdle || !isOurs(arena.here, service)) return undefined
  const findings: Findings = { kind: 'Service', key: service.key, refusals: undefined }
  const work: Work = {
    arena,
    service,
    findings,
    externals: externalsOf(arena, service, findings),
    slices: withoutLoops(slices, service, findings),
    firstPorts: service.ports.length < 2 ? undefined : firstPortsOf(service),
    isContested: isContested(arena, service),
  }
  return {
    service: service.key,
    clusterIps: work.isContested ? ownClusterIps(arena, service) : service.clusterIps,
    ports: resolvePorts(work),
    refusals: allRefusals(service, slices, findings),
  }
}

function ownClusterIps(arena: Arena, service: Service): readonly Ip[] {
  const own = service.clusterIps.filter(ip => clusterIpOwner(arena, service, ip) === undefined)
  return own.length === service.clusterIps.length ? service.clusterIps : own
}

interface Work {
  readonly arena: Arena
  readonly service: Service
  readonly findings: Findings
  readonly externals: readonly External[]
  readonly slices: SliceList
  /** Undefined when there is only one port. */
  readonly firstPorts: FirstPorts | undefined
  /** Another Service may have a ClusterIP of this one. */
  readonly isContested: boolean
}

function resolvePorts(work: Work): readonly PortFrontends[] {
  const { ports, clusterIps } = work.service
  const list = listFor<PortFrontends>(ports.length * clusterIps.length)
  let count = 0
  for (let index = 0; index < ports.length; index++) {
    const port = ports[index]
    if (port === undefined) continue
    for (let at = 0; at < clusterIps.length; at++) {
      const resolved = resolvePort(work, port, clusterIps[at] ?? '')
      if (resolved !== undefined) list[count++] = resolved
    }
  }
  return cut(list, count)
}

/** Of PortFrontends.key. */
const KEY_ENDS: Readonly<Record<Protocol, Readonly<Record<Family, string>>>> = {
  TCP: { IPv4: '/TCP/IPv4', IPv6: '/TCP/IPv6' },
  UDP: { IPv4: '/UDP/IPv4', IPv6: '/UDP/IPv6' },
  SCTP: { IPv4: '/SCTP/IPv4', IPv6: '/SCTP/IPv6' },
}

function resolvePort(work: Work, port: ServicePortSpec, clusterIp: Ip): PortFrontends | undefined {
  const { service, arena } = work
  const family = familyOf(clusterIp)
  const among = endpointsOf(work.slices, port, family)
  const found = survey(among.endpoints, arena.here)
  const internal = internalRoute(service, found)
  const external = externalRoute(service, found)
  const frontends = frontendsOf(work, { port, family, clusterIp, internal, external })
  if (frontends.length === 0) return undefined
  const lists = selectBackends({ among, found, place: arena.here }, needsOf(frontends))
  const { name, protocol } = port
  // Of these texts all parts are there anyway, so that pieces put together cost less than a copy.
  const displayName = name === '' ? service.key : `${service.key}:${name}`
  return {
    key: `${name === '' ? `${service.key}:` : displayName}${KEY_ENDS[protocol][family]}`,
    displayName,
    service: service.key,
    family,
    protocol,
    affinityTimeoutS: service.affinityTimeoutS,
    frontends,
    cluster: lists.cluster,
    local: lists.local,
  }
}

interface PortWork {
  readonly port: ServicePortSpec
  readonly family: Family
  readonly clusterIp: Ip
  readonly internal: Route
  readonly external: Route
}

const NO_FRONTENDS: readonly Frontend[] = []

/** The frontends of a port in one family, without those that another port or Service has. */
function frontendsOf(work: Work, at: PortWork): readonly Frontend[] {
  const { port, external } = at
  const first = atClusterIp(work, at)
  if (port.nodePort === 0 && work.externals.length === 0) return first === undefined ? NO_FRONTENDS : [first]
  const frontends = first === undefined ? [] : [first]
  if (hasNodePort(work, at))
    frontends.push({
      kind: 'NodePort',
      ip: undefined,
      port: port.nodePort,
      route: external,
      sourceRanges: undefined,
    })
  for (const its of work.externals) {
    const frontend = atExternal(work, at, its)
    if (frontend !== undefined) frontends.push(frontend)
  }
  return trimmed(frontends)
}

function atClusterIp(work: Work, at: PortWork): Frontend | undefined {
  const { service } = work
  const { port, clusterIp, internal } = at
  const twin = twinOf(work, port, numberClaim)
  const rival =
    twin ?? (work.isContested ? nameOf(clusterPortOwner(work.arena, service, clusterIp, port)) : undefined)
  if (rival === undefined)
    return { kind: 'ClusterIP', ip: clusterIp, port: port.port, route: internal, sourceRanges: undefined }
  refuseContested(work, 'spec.clusterIPs', `${formatIpPort(clusterIp, port.port)}/${port.protocol}`, rival)
  return undefined
}

function atExternal(work: Work, at: PortWork, { kind, ip, sourceRanges }: External): Frontend | undefined {
  const { port, family, external } = at
  if (familyOf(ip) !== family) return undefined
  const twin = twinOf(work, port, numberClaim)
  const rival =
    twin ?? nameOf(placeOwner(work.arena, work.service, addressPlace(ip, port.protocol, port.port)))
  if (rival === undefined) return { kind, ip, port: port.port, route: external, sourceRanges }
  refuseContested(work, fieldOf(kind), `${formatIpPort(ip, port.port)}/${port.protocol}`, rival)
  return undefined
}

function hasNodePort(work: Work, at: PortWork): boolean {
  const { port, family } = at
  if (port.nodePort === 0) return false
  const place = nodePortPlace(family, port.protocol, port.nodePort)
  const twin = twinOf(work, port, nodePortClaim)
  const rival = twin ?? nameOf(placeOwner(work.arena, work.service, place))
  if (rival === undefined) return true
  refuseContested(work, `spec.ports[${port.name}].nodePort`, `${port.nodePort}/${port.protocol}`, rival)
  return false
}

function refuseContested(work: Work, field: string, value: string, rival: string): void {
  refuse(work.findings, field, value, `already claimed by ${rival}, which comes first`)
}

function nameOf(owner: Service | undefined): string | undefined {
  return owner === undefined ? undefined : `Service ${owner.key}`
}

/** By what a port claims: the first port of the Service that claims it. Ports may be many, and hostile. */
type FirstPorts = ReadonlyMap<string, ServicePortSpec>

function firstPortsOf(service: Service): FirstPorts {
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
  { firstPorts }: Work,
  port: ServicePortSpec,
  claimOf: (port: ServicePortSpec) => string,
): string | undefined {
  if (firstPorts === undefined) return undefined
  const first = firstPorts.get(claimOf(port))
  return first === undefined || first === port ? undefined : `port "${first.name}" of this Service`
}

/** Of the Service, of its slices, and what was found; both families lose one NodePort with the same words. */
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
