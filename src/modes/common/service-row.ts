import { compareIps, formatIp, formatIpPort, type Ip } from '../../base/ip.ts'
import type { Backend } from '../../model/frontend.ts'

/** One place at which traffic is caught, and what becomes of it: what people and `-o json` are shown. */
export interface ServiceRow {
  /** `namespace/name:port`. */
  readonly service: string
  /** `ClusterIP`, `External` (externalIPs and load-balancer addresses: the kernel does not tell them apart), `NodePort`. */
  readonly type: string
  readonly protocol: string
  /** `10.96.0.10:80`; `*:30080` for every address of the node. */
  readonly frontend: string
  /** `balance`, `relay` (in userspace mode), `reject` or `drop`. */
  readonly action: string
  /** Where everybody's connections go, or nobody's but those below say otherwise. */
  readonly endpoints: readonly string[]
  /** With a Local policy: where connections from outside go, source address kept. */
  readonly localEndpoints?: readonly string[]
  /** Clients that may connect; absent when all may. */
  readonly allowedFrom?: readonly string[]
  readonly affinitySeconds?: number
  /** Where the daemon takes connections that it relays. */
  readonly listener?: string
  /** With a Local policy: where it takes those of pods and of the node. */
  readonly insideListener?: string
  /** `NOT REACHED …` when packets do not come here, `INCOMPLETE …` when something else is missing; absent when all is well. */
  readonly problem?: string
  /** Of the rules that it was read from; absent for what was computed. */
  readonly mode?: string
}

/** What a problem begins with. */
export const NOT_REACHED = 'NOT REACHED'
export const INCOMPLETE = 'INCOMPLETE'

/** By address, as numbers, in every command and mode. */
export function endpointTexts(endpoints: readonly Pick<Backend, 'ip' | 'port'>[]): readonly string[] {
  return [...endpoints]
    .sort((a, b) => compareIps(a.ip, b.ip) || a.port - b.port)
    .map(({ ip, port }) => formatIpPort(ip, port))
}

/** Whether it is of a Service, `namespace/name`; of any when that is empty. */
export function isOfService(services: readonly string[], service: string): boolean {
  return service === '' || services.some(name => name === service || name.startsWith(`${service}:`))
}

/** An address in a map of frontends. */
export interface CaughtPlace {
  /** Of the Service port, with its protocol. */
  readonly port: string
  readonly ip: Ip
  /** `yes` where only ClusterIPs are served so, `maybe` where others can be, too. */
  readonly isClusterIp: 'yes' | 'maybe' | 'no'
}

/**
 * Addresses that the set of ClusterIPs has lost: every port of a Service has one, and of these ports no address is in the
 * set. Of a named proxy, which serves headless Services as well, only those count that can be nothing else.
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
