import { formatCidr } from '../base/cidr.ts'
import { type Family, formatIp } from '../base/ip.ts'
import type { Backend, Frontend, FrontendKind, Route, ServiceFrontends, WholeAddresses } from './frontend.ts'
import type { Refusal } from './refusal.ts'
import type { Protocol } from './service.ts'

/* What a Service asks of this node, as the daemon's /state sends it. Equal values give equal JSON. */

interface ServiceJson {
  readonly service: string
  readonly ports: readonly PortJson[]
  /** Absent unless external addresses are served as a whole. */
  readonly wholes?: readonly WholeJson[]
  readonly refusals: readonly Refusal[]
}

interface PortJson {
  /** `namespace/name:port`, or `namespace/name` when the port has no name. */
  readonly name: string
  readonly family: Family
  readonly protocol: Protocol
  readonly affinitySeconds: number
  /** Absent for the default one. */
  readonly scheduler?: string
  readonly frontends: readonly FrontendJson[]
  readonly cluster: readonly BackendJson[]
  readonly local: readonly BackendJson[]
}

interface FrontendJson {
  readonly kind: FrontendKind
  /** Absent for a NodePort. */
  readonly ip?: string
  readonly port: number
  readonly route: Route
  /** Absent when every client may connect. */
  readonly sourceRanges?: readonly string[]
}

interface BackendJson {
  readonly ip: string
  readonly port: number
  readonly local: boolean
}

interface WholeJson {
  readonly ips: readonly string[]
  readonly route: Route
  readonly cluster: readonly BackendJson[]
  readonly local: readonly BackendJson[]
}

export function serviceJson({ service, ports, refusals, wholes }: ServiceFrontends): ServiceJson {
  return {
    service,
    ports: ports.map(port => ({
      name: port.displayName,
      family: port.family,
      protocol: port.protocol,
      affinitySeconds: port.affinityTimeoutS,
      ...(port.scheduler === undefined ? {} : { scheduler: port.scheduler }),
      frontends: port.frontends.map(frontendJson),
      cluster: port.cluster.map(backendJson),
      local: port.local.map(backendJson),
    })),
    ...(wholes === undefined ? {} : { wholes: wholes.map(wholeJson) }),
    refusals,
  }
}

function frontendJson({ kind, ip, port, route, sourceRanges }: Frontend): FrontendJson {
  return {
    kind,
    ...(ip === undefined ? {} : { ip: formatIp(ip) }),
    port,
    route,
    ...(sourceRanges === undefined ? {} : { sourceRanges: sourceRanges.map(formatCidr) }),
  }
}

function wholeJson({ ips, route, cluster, local }: WholeAddresses): WholeJson {
  return {
    ips: ips.map(formatIp),
    route,
    cluster: cluster.map(backendJson),
    local: local.map(backendJson),
  }
}

function backendJson({ ip, port, local }: Backend): BackendJson {
  return { ip: formatIp(ip), port, local }
}
