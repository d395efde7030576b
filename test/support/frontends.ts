import { PersistentMap } from '../../src/base/collections.ts'
import type { Cidr, Ip } from '../../src/base/ip.ts'
import type {
  Backend,
  Frontend,
  FrontendTable,
  PortFrontends,
  Route,
  ServiceFrontends,
} from '../../src/model/frontend.ts'
import type { Protocol } from '../../src/model/service.ts'

/** Addresses of either family from a few numbers: enough for tests, without a parser. */
export function ip4(a: number, b: number, c: number, d: number): Ip {
  return String.fromCharCode(a, b, c, d)
}

/** fd00:prefix::last */
export function ip6(prefix: number, last: number): Ip {
  return String.fromCharCode(
    0xfd,
    0,
    prefix >>> 8,
    prefix & 255,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    0,
    last >>> 8,
    last & 255,
  )
}

export function backends(
  count: number,
  options: { v6?: boolean; local?: boolean; from?: number } = {},
): Backend[] {
  const { v6 = false, local = false, from = 1 } = options
  return Array.from({ length: count }, (_, i) => {
    const n = from + i
    const ip = v6 ? ip6(local ? 0x20 : 0x21, n) : ip4(10, local ? 20 : 21, n >>> 8, n & 255)
    return { ip, port: 8080, local }
  })
}

export const CLUSTER: Route = { kind: 'internal', over: 'cluster' }
export const LOCAL: Route = { kind: 'internal', over: 'local' }
export const EXTERNAL: Route = { kind: 'external-cluster' }
export const EXTERNAL_LOCAL: Route = { kind: 'external-local' }
export const REJECT: Route = { kind: 'reject' }
export const DROP: Route = { kind: 'drop' }

export function clusterIp(ip: Ip, port: number, route: Route = CLUSTER): Frontend {
  return { kind: 'ClusterIP', ip, port, route, sourceRanges: undefined }
}

export function vip(ip: Ip, port: number, route: Route, sourceRanges?: readonly Cidr[]): Frontend {
  return { kind: 'LoadBalancerIP', ip, port, route, sourceRanges }
}

export function nodePort(port: number, route: Route): Frontend {
  return { kind: 'NodePort', ip: undefined, port, route, sourceRanges: undefined }
}

export interface PortSpec {
  readonly name?: string
  readonly v6?: boolean
  readonly protocol?: Protocol
  readonly affinityTimeoutS?: number
  readonly scheduler?: string | undefined
  readonly frontends: readonly Frontend[]
  readonly cluster?: readonly Backend[]
  readonly local?: readonly Backend[]
}

export function service(key: string, ports: readonly PortSpec[]): ServiceFrontends {
  const made = ports.map((port): PortFrontends => {
    const { name = '', v6 = false, protocol = 'TCP', affinityTimeoutS = 0 } = port
    const displayName = name === '' ? key : `${key}:${name}`
    const family = v6 ? 'IPv6' : 'IPv4'
    return {
      key: `${key}:${name}/${protocol}/${family}`,
      displayName,
      service: key,
      family,
      protocol,
      affinityTimeoutS,
      scheduler: port.scheduler,
      frontends: port.frontends,
      cluster: port.cluster ?? [],
      local: port.local ?? [],
    }
  })
  const ips = made.flatMap(({ frontends }) =>
    frontends.flatMap(({ kind, ip }) => (kind === 'ClusterIP' && ip !== undefined ? [ip] : [])),
  )
  return { service: key, clusterIps: [...new Set(ips)], ports: made, refusals: [] }
}

export function table(
  services: readonly ServiceFrontends[],
  rest: Partial<Omit<FrontendTable, 'services'>> = {},
): FrontendTable {
  const locals = new Map<string, number>()
  for (const { ports } of services) {
    for (const { cluster, local } of ports) {
      const seen = new Set([...cluster, ...local].filter(one => one.local).map(({ ip }) => ip))
      for (const ip of seen) locals.set(ip, (locals.get(ip) ?? 0) + 1)
    }
  }
  return {
    number: 1,
    services: PersistentMap.from(services.map(one => [one.service, one] as const)),
    localBackends: PersistentMap.from(locals),
    nodePorts: { IPv4: { kind: 'all' }, IPv6: { kind: 'all' } },
    localIps: [],
    serviceCidrs: [],
    node: { ips: [], podCidrs: [] },
    ...rest,
  }
}
