import { cut, listFor } from '../base/compact.ts'
import { familyOf, type Ip } from '../base/ip.ts'
import type { Steps } from '../base/steps.ts'
import { type Arena, clusterIpOwner, isContested } from './contest.ts'
import { externalsOf } from './externals.ts'
import type { PortFrontends, ServiceFrontends } from './frontend.ts'
import { healthCheckOf } from './health-check.ts'
import { isOurs } from './here.ts'
import { withoutLoops } from './loops.ts'
import { endpointsInSteps, endpointsOf } from './port-endpoints.ts'
import { firstPortsOf, resolvePort, type ServiceWork } from './port-frontends.ts'
import { type Findings, type Refusal, refusalsOf } from './refusal.ts'
import type { Service } from './service.ts'
import type { SliceList } from './slice-groups.ts'

/** What a Service asks of this node; undefined when that is nothing and there is nothing to say about it. */
export function resolveService(
  arena: Arena,
  service: Service,
  slices: SliceList,
): ServiceFrontends | undefined {
  if (!isServed(arena, service)) return undefined
  const work = begin(arena, service, slices)
  const { ports, clusterIps } = service
  const list = listFor<PortFrontends>(ports.length * clusterIps.length)
  let count = 0
  for (let index = 0; index < ports.length; index++) {
    const port = ports[index]
    if (port === undefined) continue
    for (let at = 0; at < clusterIps.length; at++) {
      const clusterIp = clusterIps[at] ?? ''
      const { name, protocol } = port
      const family = familyOf(clusterIp)
      const among = endpointsOf(work.slices, { name, protocol, family })
      const resolved = resolvePort(work, { port, family, clusterIp, among })
      if (resolved !== undefined) list[count++] = resolved
    }
  }
  return end(work, slices, cut(list, count))
}

/** The same with pauses, for tens of thousands of endpoints. */
export function* resolveServiceInSteps(
  arena: Arena,
  service: Service,
  slices: SliceList,
): Steps<ServiceFrontends | undefined> {
  if (!isServed(arena, service)) return undefined
  const work = begin(arena, service, slices)
  const list: PortFrontends[] = []
  for (const port of service.ports) {
    for (const clusterIp of service.clusterIps) {
      yield
      const { name, protocol } = port
      const family = familyOf(clusterIp)
      const among = yield* endpointsInSteps(work.slices, { name, protocol, family })
      yield
      const resolved = resolvePort(work, { port, family, clusterIp, among })
      if (resolved !== undefined) list.push(resolved)
    }
  }
  yield
  return end(work, slices, list)
}

function isServed({ here }: Arena, service: Service): boolean {
  return (service.clusterIps.length > 0 || service.refusals.length > 0) && isOurs(here, service)
}

function begin(arena: Arena, service: Service, slices: SliceList): ServiceWork {
  const findings: Findings = { kind: 'Service', key: service.key, refusals: undefined }
  return {
    arena,
    service,
    findings,
    externals: externalsOf(arena, service, findings),
    slices: withoutLoops(slices, service, findings),
    firstPorts: service.ports.length < 2 ? undefined : firstPortsOf(service),
    isContested: isContested(arena, service),
  }
}

function end(work: ServiceWork, slices: SliceList, ports: readonly PortFrontends[]): ServiceFrontends {
  const { arena, service, findings } = work
  const resolved = {
    service: service.key,
    clusterIps: work.isContested ? ownClusterIps(arena, service) : service.clusterIps,
    ports,
    refusals: allRefusals(service, slices, findings),
  }
  const healthCheck = healthCheckOf(service, work.slices, arena.here.nodeName)
  return healthCheck === undefined ? resolved : { ...resolved, healthCheck }
}

function ownClusterIps(arena: Arena, service: Service): readonly Ip[] {
  const own = service.clusterIps.filter(ip => clusterIpOwner(arena, service, ip) === undefined)
  return own.length === service.clusterIps.length ? service.clusterIps : own
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
