import { formatIp, type Ip } from '../../base/ip.ts'
import { INCOMPLETE } from './service-row.ts'

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
