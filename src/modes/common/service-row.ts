import { compareIps, formatIp, formatIpPort, type Ip } from '../../base/ip.ts'
import type { Backend } from '../../model/frontend.ts'

/** One place at which rules catch traffic, and what they do with it: a row for people and for `-o json`. */
export interface ServiceRow {
  /** `namespace/name:port`. */
  readonly service: string
  /**
   * `ClusterIP`, `External` (externalIPs and load-balancer addresses, which the kernel does not distinguish),
   * `NodePort`.
   */
  readonly type: string
  readonly protocol: string
  /** `10.96.0.10:80`; `*:30080` for every address of the node. */
  readonly frontend: string
  /** `balance`, `relay` (in userspace mode), `reject` or `drop`. */
  readonly action: string
  /** The endpoints of all connections, or of those that the fields below do not cover. */
  readonly endpoints: readonly string[]
  /** With policy Local: the endpoints of connections from outside, which keep their source address. */
  readonly localEndpoints?: readonly string[]
  /** The clients that may connect; absent when all may. */
  readonly allowedFrom?: readonly string[]
  readonly affinitySeconds?: number
  /** The address at which the daemon accepts connections that it relays. */
  readonly listener?: string
  /** With policy Local: the address at which it accepts connections of pods and of the node. */
  readonly insideListener?: string
  /**
   * `NOT REACHED …` when packets do not come here, `INCOMPLETE …` when something else is missing; absent
   * otherwise.
   */
  readonly problem?: string
  /** The mode whose rules it was read from; absent for a computed row. */
  readonly mode?: string
}

/** The prefix of the problem of a place that packets do not reach. */
export const NOT_REACHED = 'NOT REACHED'
export const INCOMPLETE = 'INCOMPLETE'

/** Formats endpoints, sorted by address as a number, for every command and mode. */
export function endpointTexts(endpoints: readonly Pick<Backend, 'ip' | 'port'>[]): readonly string[] {
  return [...endpoints]
    .sort((a, b) => compareIps(a.ip, b.ip) || a.port - b.port)
    .map(({ ip, port }) => formatIpPort(ip, port))
}

/** Whether the row belongs to the Service `namespace/name`. An empty name matches all Services. */
export function isOfService(services: readonly string[], service: string): boolean {
  return service === '' || services.some(name => name === service || name.startsWith(`${service}:`))
}

/** An address in a map of frontends. */
export interface CaughtPlace {
  /** The Service port, with its protocol. */
  readonly port: string
  readonly ip: Ip
  /** `yes` where only ClusterIPs are served in this way, `maybe` where other addresses can be too. */
  readonly isClusterIp: 'yes' | 'maybe' | 'no'
}

/**
 * Gives addresses that are missing from the set of ClusterIPs. Every port of a Service has a ClusterIP, so a
 * port without any address in the set has lost it. A named proxy also serves headless Services, so only
 * addresses that can be nothing but a ClusterIP count there.
 */
export function lostClusterIps(
  places: readonly CaughtPlace[],
  known: ReadonlySet<Ip>,
  isNamed: boolean,
): ReadonlySet<Ip> {
  const byPort = new Map<string, CaughtPlace[]>()
  for (const place of places) {
    const others = byPort.get(place.port)
    if (others === undefined) byPort.set(place.port, [place])
    else others.push(place)
  }
  const lost = new Set<Ip>()
  for (const group of byPort.values()) {
    if (group.some(({ ip }) => known.has(ip))) continue
    const sure = group.filter(({ isClusterIp }) => isClusterIp === 'yes')
    const maybe = isNamed ? [] : group.filter(({ isClusterIp }) => isClusterIp === 'maybe')
    const [found, ...more] = sure.length > 0 ? sure : maybe
    if (found !== undefined && more.length === 0) lost.add(found.ip)
  }
  return lost
}

export function lostText(ip: Ip, follows: string): string {
  return `${INCOMPLETE}: ${formatIp(ip)} is missing in set cluster-ips: ${follows}`
}
