import { formatCidr, formatIp, formatIpPort } from '../../src/base/ip.ts'
import type {
  Backend,
  Frontend,
  PortFrontends,
  Route,
  ServiceFrontends,
  WholeAddresses,
} from '../../src/model/frontend.ts'

/** What a Service asks of this node, in words that a test can spell out. Equal values, equal words. */
interface PrintedService {
  readonly service: string
  readonly ports: readonly PrintedPort[]
  /** Absent unless external addresses are served as a whole. */
  readonly wholes?: readonly PrintedWhole[]
  /** `Service ns/web: spec.externalIPs = 127.0.0.1: a loopback address`. */
  readonly refusals: readonly string[]
}

interface PrintedWhole {
  /** `ExternalIP 192.0.2.1 external-cluster`. */
  readonly frontends: readonly string[]
  readonly cluster: readonly string[]
  readonly local: readonly string[]
}

interface PrintedPort {
  readonly key: string
  readonly affinitySeconds: number
  /** Absent for the default. */
  readonly scheduler?: string
  /** `ClusterIP 10.96.0.1:80 internal/cluster from 192.0.2.0/24`. */
  readonly frontends: readonly string[]
  readonly cluster: readonly string[]
  readonly local: readonly string[]
}

export function printedService({ service, ports, refusals, wholes }: ServiceFrontends): PrintedService {
  return {
    service,
    ports: ports.map(printedPort),
    ...(wholes === undefined ? {} : { wholes: wholes.map(printedWhole) }),
    refusals: refusals.map(({ object, field, value, reason }) => `${object}: ${field} = ${value}: ${reason}`),
  }
}

function printedWhole({ ips, route, cluster, local }: WholeAddresses): PrintedWhole {
  return {
    frontends: ips.map(ip => `ExternalIP ${formatIp(ip)} ${printedRoute(route)}`),
    cluster: cluster.map(printedAddress),
    local: local.map(printedAddress),
  }
}

function printedAddress({ ip, local }: Backend): string {
  return local ? `${formatIp(ip)} local` : formatIp(ip)
}

function printedPort(port: PortFrontends): PrintedPort {
  const { key, affinityTimeoutS, scheduler, frontends, cluster, local } = port
  return {
    key,
    affinitySeconds: affinityTimeoutS,
    ...(scheduler === undefined ? {} : { scheduler }),
    frontends: frontends.map(printedFrontend),
    cluster: cluster.map(printedBackend),
    local: local.map(printedBackend),
  }
}

function printedFrontend({ kind, ip, port, route, sourceRanges }: Frontend): string {
  const place = ip === undefined ? `:${port}` : formatIpPort(ip, port)
  const from = sourceRanges === undefined ? '' : ` from ${sourceRanges.map(formatCidr).join(',')}`
  return `${kind} ${place} ${printedRoute(route)}${from}`
}

function printedRoute(route: Route): string {
  return route.kind === 'internal' ? `internal/${route.over}` : route.kind
}

function printedBackend({ ip, port, local }: Backend): string {
  const place = formatIpPort(ip, port)
  return local ? `${place} local` : place
}
