import { FAMILIES, type Family, familyOf, formatCidr, formatIp, type Ip } from '../base/ip.ts'
import { isSame } from '../base/plain-data.ts'
import type { Frontend, FrontendKind, ServiceFrontends } from '../model/frontend.ts'
import type { Service, ServicePortSpec } from '../model/service.ts'
import type { MessageOf } from '../wire/protobuf/table.ts'
import { localv1 } from './schema.ts'
import { type ServiceView, targetOf } from './service-view.ts'

type ServiceMessage = MessageOf<typeof localv1.Service>
type PortMapping = MessageOf<typeof localv1.PortMapping>
type IpFilter = MessageOf<typeof localv1.IPFilter>
type IpSet = MessageOf<typeof localv1.IPSet>

/** Tests whether serviceMessage() gives the same for both, as it does when only endpoints differ; makes neither. */
export function isSameMessage(a: ServiceView, b: ServiceView): boolean {
  return a.service === b.service && isSame(reachOf(a.frontends), reachOf(b.frontends))
}

function reachOf({ ports, wholes = [], healthCheck }: ServiceFrontends): readonly unknown[] {
  return [
    healthCheck?.port,
    ports.map(({ key, frontends }) => [
      key,
      ...frontends.flatMap(({ kind, ip, sourceRanges }) => [kind, ip, sourceRanges === undefined]),
    ]),
    wholes.map(({ ips }) => ips),
  ]
}

/** The addresses of a kind that lead to at least one port of the Service. */
function addressesOf({ ports }: ServiceFrontends, wanted: FrontendKind): readonly Ip[] {
  const frontends = ports.flatMap(port => port.frontends)
  return [...new Set(frontends.flatMap(({ kind, ip }) => (kind === wanted ? (ip ?? []) : [])))]
}

/** ClusterIPs and ExternalIPs are always there, empty where there are none: back ends in Go read them without a check. */
export function serviceMessage(view: ServiceView): ServiceMessage {
  const { service } = view
  const { wholes = [], healthCheck } = view.frontends
  const external = [...wholes.flatMap(({ ips }) => ips), ...addressesOf(view.frontends, 'ExternalIP')]
  const balanced = addressesOf(view.frontends, 'LoadBalancerIP')
  const { details, affinityTimeoutS } = service
  const [namespace, name] = service.key.split('/')
  return {
    Namespace: namespace,
    Name: name,
    Type: service.type,
    IPs: {
      ClusterIPs: ipSet(addressesOf(view.frontends, 'ClusterIP')),
      ExternalIPs: ipSet(external),
      Headless: service.headless !== undefined || undefined,
      LoadBalancerIPs: balanced.length === 0 ? undefined : ipSet(balanced),
    },
    MapIP: wholes.length > 0 || undefined,
    Ports: filled(portsOf(view)),
    ExternalTrafficToLocal: service.externalTrafficPolicy === 'Local' || undefined,
    Labels: filled(details?.labels ?? {}),
    Annotations: filled(details?.annotations ?? {}),
    IPFilters: filled(filtersOf(view, balanced)),
    ClientIP: affinityTimeoutS === 0 ? undefined : { TimeoutSeconds: affinityTimeoutS },
    InternalTrafficToLocal: service.internalTrafficPolicy === 'Local' || undefined,
    HealthCheckNodePort: healthCheck?.port,
  }
}

/** Undefined where it is empty: JSON leaves it out then, as protobuf does. */
function filled<T extends object>(value: T): T | undefined {
  return Object.keys(value).length === 0 ? undefined : value
}

function ipSet(ips: readonly Ip[]): IpSet {
  return { V4: filled(textsOf(ips, 'IPv4')), V6: filled(textsOf(ips, 'IPv6')) }
}

function textsOf(ips: readonly Ip[], family: Family): readonly string[] {
  return ips.filter(ip => familyOf(ip) === family).map(formatIp)
}

function portsOf({ service, frontends }: ServiceView): readonly PortMapping[] {
  const served = new Map<string, readonly Frontend[]>()
  for (const port of frontends.ports) {
    const key = `${port.displayName}/${port.protocol}`
    served.set(key, [...(served.get(key) ?? []), ...port.frontends])
  }
  return service.ports.flatMap(port => {
    const its = served.get(
      `${port.name === '' ? service.key : `${service.key}:${port.name}`}/${port.protocol}`,
    )
    return its === undefined ? [] : [portMapping(service, port, its)]
  })
}

function portMapping(service: Service, spec: ServicePortSpec, frontends: readonly Frontend[]): PortMapping {
  const { name, protocol, port, nodePort } = spec
  const target = targetOf(service, spec)
  return {
    Name: name || undefined,
    Protocol: localv1.Protocol[protocol],
    Port: port,
    NodePort: frontends.some(({ kind }) => kind === 'NodePort') ? nodePort : undefined,
    TargetPort: typeof target === 'number' ? target : undefined,
    TargetPortName: typeof target === 'string' ? target : undefined,
  }
}

/** The source ranges of the load-balancer addresses of a family, where they are restricted. */
function filtersOf({ service, frontends }: ServiceView, ips: readonly Ip[]): readonly IpFilter[] {
  if (service.sourceRanges.length === 0 || ips.length === 0) return []
  const guarded = new Set<Ip>()
  for (const port of frontends.ports)
    for (const { kind, ip, sourceRanges } of port.frontends)
      if (kind === 'LoadBalancerIP' && ip !== undefined && sourceRanges !== undefined) guarded.add(ip)
  return FAMILIES.flatMap(family => {
    const targets = [...guarded].filter(ip => familyOf(ip) === family)
    const ranges = service.sourceRanges.filter(({ ip }) => familyOf(ip) === family)
    return targets.length === 0 ? [] : [{ TargetIPs: ipSet(targets), SourceRanges: ranges.map(formatCidr) }]
  })
}
