import { joined, trimmed } from '../base/compact.ts'
import { type Family, familyOf, formatIpPort, type Ip } from '../base/ip.ts'
import { candidatesOf } from './candidates.ts'
import { addressPlace, nodePortPlace } from './claims.ts'
import { type Arena, clusterIpOwner, clusterPortOwner, placeOwner } from './contest.ts'
import type { EndpointSlice } from './endpoint.ts'
import { type External, externalsOf, fieldOf } from './externals.ts'
import type { Frontend, PortFrontends, Route, ServiceFrontends } from './frontend.ts'
import { isOurs } from './here.ts'
import { withoutLoops } from './loops.ts'
import { type Findings, NO_REFUSALS, type Refusal, refusalsOf, refuse } from './refusal.ts'
import { externalRoute, internalRoute, needsOf } from './routes.ts'
import { selectBackends } from './select.ts'
import type { Service, ServicePortSpec } from './service.ts'
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
  }
  const ports: PortFrontends[] = []
  for (const port of service.ports) {
    for (const clusterIp of service.clusterIps) {
      const resolved = resolvePort(work, port, clusterIp)
      if (resolved !== undefined) ports.push(resolved)
    }
  }
  return {
    service: service.key,
    clusterIps: ownClusterIps(arena, service),
    ports: trimmed(ports),
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
  readonly slices: readonly EndpointSlice[]
  /** Undefined when there is only one port. */
  readonly firstPorts: FirstPorts | undefined
}

function resolvePort(work: Work, port: ServicePortSpec, clusterIp: Ip): PortFrontends | undefined {
  const { service, arena } = work
  const family = familyOf(clusterIp)
  const candidates = candidatesOf(work.slices, port, family)
  const found = survey(candidates, arena.here)
  const internal = internalRoute(service, found)
  const external = externalRoute(service, found)
  const frontends = frontendsOf(work, { port, family, clusterIp, internal, external })
  if (frontends.length === 0) return undefined
  const lists = selectBackends({ candidates, found, place: arena.here }, needsOf(frontends))
  const displayName = port.name === '' ? service.key : joined([service.key, ':', port.name])
  return {
    key: joined([service.key, ':', port.name, '/', port.protocol, '/', family]),
    displayName,
    service: service.key,
    family,
    protocol: port.protocol,
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

/** The frontends of a port in one family, without those that another port or Service has. */
function frontendsOf(work: Work, at: PortWork): readonly Frontend[] {
  const { service } = work
  const { port, family, clusterIp, internal, external } = at
  const frontends: Frontend[] = []
  const twin = twinOf(work, port, numberClaim(port))
  const clusterRival = twin ?? nameOf(clusterPortOwner(work.arena, service, clusterIp, port))
  if (clusterRival === undefined) {
    frontends.push({
      kind: 'ClusterIP',
      ip: clusterIp,
      port: port.port,
      route: internal,
      sourceRanges: undefined,
    })
  } else
    refuseContested(
      work,
      'spec.clusterIPs',
      `${formatIpPort(clusterIp, port.port)}/${port.protocol}`,
      clusterRival,
    )
  if (hasNodePort(work, at)) {
    frontends.push({
      kind: 'NodePort',
      ip: undefined,
      port: port.nodePort,
      route: external,
      sourceRanges: undefined,
    })
  }
  for (const { kind, ip, sourceRanges } of work.externals) {
    if (familyOf(ip) !== family) continue
    const rival = twin ?? nameOf(placeOwner(work.arena, service, addressPlace(ip, port.protocol, port.port)))
    if (rival === undefined) frontends.push({ kind, ip, port: port.port, route: external, sourceRanges })
    else refuseContested(work, fieldOf(kind), `${formatIpPort(ip, port.port)}/${port.protocol}`, rival)
  }
  return trimmed(frontends)
}

function hasNodePort(work: Work, at: PortWork): boolean {
  const { port, family } = at
  if (port.nodePort === 0) return false
  const place = nodePortPlace(family, port.protocol, port.nodePort)
  const twin = twinOf(work, port, nodePortClaim(port))
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
function twinOf(work: Work, port: ServicePortSpec, claim: string): string | undefined {
  const first = work.firstPorts?.get(claim)
  return first === undefined || first === port ? undefined : `port "${first.name}" of this Service`
}

/** Of the Service, of its slices, and what was found; both families lose one NodePort with the same words. */
function allRefusals(
  service: Service,
  slices: readonly EndpointSlice[],
  findings: Findings,
): readonly Refusal[] {
  const found = new Map(
    refusalsOf(findings).map(its => [`${its.object} ${its.field} ${its.value} ${its.reason}`, its]),
  )
  const all = [service.refusals, ...slices.map(slice => slice.refusals), [...found.values()]].flat()
  return all.length === 0 ? NO_REFUSALS : all
}
