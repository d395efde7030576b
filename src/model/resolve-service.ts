import { joined, trimmed } from '../base/compact.ts'
import { type Family, familyOf, formatIpPort, type Ip } from '../base/ip.ts'
import { candidatesOf, orderedSlices } from './candidates.ts'
import { addressPlace, nodePortPlace } from './claims.ts'
import { type Arena, clusterIpOwner, clusterPortOwner, placeOwner } from './contest.ts'
import type { EndpointSlice } from './endpoint.ts'
import { isSame } from './equal.ts'
import { type External, externalsOf, fieldOf } from './externals.ts'
import type { Frontend, PortFrontends, Route, ServiceFrontends } from './frontend.ts'
import { isOurs } from './here.ts'
import { withoutLoops } from './loops.ts'
import { type Findings, NO_REFUSALS, type Refusal, refuse } from './refusal.ts'
import { externalRoute, internalRoute, needsOf } from './routes.ts'
import { selectBackends } from './select.ts'
import type { Service, ServicePortSpec } from './service.ts'
import { survey } from './topology.ts'

/** What a Service asks of this node; undefined when that is nothing and there is nothing to say about it. */
export function resolveService(
  arena: Arena,
  service: Service,
  slices: ReadonlyMap<string, EndpointSlice> | undefined,
): ServiceFrontends | undefined {
  const isIdle = service.clusterIps.length === 0 && service.refusals.length === 0
  if (isIdle || !isOurs(arena.here, service)) return undefined
  const findings: Findings = { object: `Service ${service.key}`, refusals: [] }
  const ordered = orderedSlices(slices)
  const work: Work = {
    arena,
    service,
    findings,
    externals: externalsOf(arena, service, findings),
    slices: withoutLoops(ordered, service, findings),
  }
  const ports: PortFrontends[] = []
  for (let index = 0; index < service.ports.length; index++) {
    for (const clusterIp of service.clusterIps) {
      const port = resolvePort(work, index, clusterIp)
      if (port !== undefined) ports.push(port)
    }
  }
  return {
    service: service.key,
    clusterIps: ownClusterIps(arena, service),
    ports: trimmed(ports),
    refusals: allRefusals(service, ordered, findings),
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
}

function resolvePort(work: Work, index: number, clusterIp: Ip): PortFrontends | undefined {
  const { service, arena } = work
  const port = service.ports[index]
  if (port === undefined) return undefined
  const family = familyOf(clusterIp)
  const candidates = candidatesOf(work.slices, port, family)
  const found = survey(candidates, arena.here)
  const internal = internalRoute(service, found)
  const external = externalRoute(service, found)
  const frontends = frontendsOf(work, { index, port, family, clusterIp, internal, external })
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
  readonly index: number
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
  const twin = twinOf(service, at.index, other => other.port === port.port)
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
  const twin = twinOf(work.service, at.index, other => other.nodePort === port.nodePort)
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

/** The earlier port of the same Service and protocol that claims the same. */
function twinOf(
  service: Service,
  index: number,
  claimsSame: (other: ServicePortSpec) => boolean,
): string | undefined {
  if (index === 0) return undefined
  const protocol = service.ports[index]?.protocol
  for (const other of service.ports.slice(0, index)) {
    if (other.protocol === protocol && claimsSame(other)) return `port "${other.name}" of this Service`
  }
  return undefined
}

function allRefusals(
  service: Service,
  slices: readonly EndpointSlice[],
  findings: Findings,
): readonly Refusal[] {
  const all = [...service.refusals]
  for (const slice of slices) all.push(...slice.refusals)
  for (const found of findings.refusals) {
    // Both families lose one NodePort with the same words.
    if (!all.some(other => isSame(other, found))) all.push(found)
  }
  return all.length === 0 ? NO_REFUSALS : all
}
