import { formatCidr } from '../base/cidr.ts'
import { FAMILIES, type Family, familyOf, formatIp, type Ip } from '../base/ip.ts'
import type { SliceList } from '../model/endpoint.ts'
import { isSame } from '../model/equal.ts'
import type { Frontend, FrontendKind, ServiceFrontends } from '../model/frontend.ts'
import type { Protocol, Service, ServicePortSpec } from '../model/service.ts'
import { targetKey } from '../model/service-details.ts'
import type { IpFilter, IpSet, PortMapping, ServiceMessage } from './localv1.ts'

/** A Service as this node sees it: its object, what was resolved from it, and its slices. */
export interface ServiceView {
  readonly service: Service
  readonly frontends: ServiceFrontends
  readonly slices: SliceList
}

/** A number, or the name of a port that each pod has a number of its own for. */
export function targetOf(service: Service, { name, protocol, port }: ServicePortSpec): number | string {
  return service.details?.targetPorts[targetKey(name, protocol)] ?? port
}

/** Whether an address of the Service is its own on this node: else nothing leads to it. */
export function isReached({ ports, wholes = [] }: ServiceFrontends): boolean {
  return ports.some(({ frontends }) => frontends.length > 0) || wholes.some(({ ips }) => ips.length > 0)
}

/** Whether serviceMessage() of both says the same, as it does when only endpoints differ; makes neither. */
export function isSameMessage(a: ServiceView, b: ServiceView): boolean {
  return a.service === b.service && isSame(reachOf(a.frontends), reachOf(b.frontends))
}

/** All that serviceMessage() reads of frontends. */
function reachOf({ ports, wholes = [] }: ServiceFrontends): readonly unknown[] {
  return [
    ports.map(({ key, frontends }) => [
      key,
      ...frontends.flatMap(({ kind, ip, sourceRanges }) => [kind, ip, sourceRanges === undefined]),
    ]),
    wholes.map(({ ips }) => ips),
  ]
}

type Addresses = Readonly<Record<FrontendKind, readonly Ip[]>>

/** Each that leads to at least one port of the Service, or to all that there are; a NodePort counts as the empty address. */
function addressesOf({ ports, wholes = [] }: ServiceFrontends): Addresses {
  const all: Record<FrontendKind, Set<Ip>> = {
    ClusterIP: new Set(),
    NodePort: new Set(),
    ExternalIP: new Set(wholes.flatMap(({ ips }) => ips)),
    LoadBalancerIP: new Set(),
  }
  for (const { frontends } of ports) for (const { kind, ip } of frontends) all[kind].add(ip ?? '')
  return {
    ClusterIP: [...all.ClusterIP],
    NodePort: [...all.NodePort],
    ExternalIP: [...all.ExternalIP],
    LoadBalancerIP: [...all.LoadBalancerIP],
  }
}

export function serviceMessage(view: ServiceView): ServiceMessage {
  const { service } = view
  const addresses = addressesOf(view.frontends)
  const { details, affinityTimeoutS, healthCheckNodePort } = service
  const [namespace = '', name = ''] = service.key.split('/')
  const ports = portsOf(view)
  const filters = filtersOf(view, addresses.LoadBalancerIP)
  const isWhole = (view.frontends.wholes ?? []).length > 0
  return {
    Namespace: namespace,
    Name: name,
    Type: service.type,
    IPs: {
      ClusterIPs: ipSet(addresses.ClusterIP),
      ExternalIPs: ipSet(addresses.ExternalIP),
      ...(service.headless === undefined ? {} : { Headless: true }),
      ...(addresses.LoadBalancerIP.length === 0 ? {} : { LoadBalancerIPs: ipSet(addresses.LoadBalancerIP) }),
    },
    ...(isWhole ? { MapIP: true } : {}),
    ...(ports.length === 0 ? {} : { Ports: ports }),
    ...(service.externalTrafficPolicy === 'Local' ? { ExternalTrafficToLocal: true } : {}),
    ...filled('Labels', details?.labels),
    ...filled('Annotations', details?.annotations),
    ...(filters.length === 0 ? {} : { IPFilters: filters }),
    ...(affinityTimeoutS === 0 ? {} : { ClientIP: { TimeoutSeconds: affinityTimeoutS } }),
    ...(service.internalTrafficPolicy === 'Local' ? { InternalTrafficToLocal: true } : {}),
    ...(healthCheckNodePort === 0 ? {} : { HealthCheckNodePort: healthCheckNodePort }),
  }
}

function filled<Name extends string>(
  name: Name,
  texts: Readonly<Record<string, string>> = {},
): Partial<Record<Name, Readonly<Record<string, string>>>> {
  if (Object.keys(texts).length === 0) return {}
  const field: Partial<Record<Name, Readonly<Record<string, string>>>> = {}
  field[name] = texts
  return field
}

function ipSet(ips: readonly Ip[]): IpSet {
  const [v4, v6] = FAMILIES.map(family => textsOf(ips, family))
  return {
    ...(v4 === undefined || v4.length === 0 ? {} : { V4: v4 }),
    ...(v6 === undefined || v6.length === 0 ? {} : { V6: v6 }),
  }
}

function textsOf(ips: readonly Ip[], family: Family): readonly string[] {
  return ips.filter(ip => familyOf(ip) === family).map(formatIp)
}

const PROTOCOLS: Readonly<Record<Protocol, 1 | 2 | 3>> = { TCP: 1, UDP: 2, SCTP: 3 }

/** The ports with at least one frontend. */
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
    ...(name === '' ? {} : { Name: name }),
    Protocol: PROTOCOLS[protocol],
    Port: port,
    ...(frontends.some(({ kind }) => kind === 'NodePort') ? { NodePort: nodePort } : {}),
    ...(typeof target === 'string' ? { TargetPortName: target } : { TargetPort: target }),
  }
}

/** Who may connect to the load-balancer addresses of a family, where not everybody may. */
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
