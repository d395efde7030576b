import { type Family, familyOf, type Ip } from '../base/ip.ts'
import type { EndpointSlice, SliceList } from './endpoint.ts'
import type { Service } from './service.ts'

/** What load balancers learn at the health check node port of a Service of policy Local. */
export interface HealthCheck {
  readonly port: number
  /**
   * Distinct addresses of ready endpoints on this node, over all ports. A family is in it when the Service has a ClusterIP
   * of that family. Endpoints that terminate do not count, even where they still get traffic: that is how a load balancer
   * learns to look elsewhere (KEP-1669).
   */
  readonly local: Readonly<Partial<Record<Family, number>>>
}

/** Undefined for Services without such a port. */
export function healthCheckOf(
  service: Service,
  slices: SliceList,
  nodeName: string,
): HealthCheck | undefined {
  const { healthCheckNodePort: port, clusterIps } = service
  if (port === 0) return undefined
  const local: Partial<Record<Family, number>> = {}
  for (const ip of clusterIps) local[familyOf(ip)] = countLocal(slices, familyOf(ip), nodeName)
  return { port, local }
}

function countLocal(slices: SliceList, family: Family, nodeName: string): number {
  const ips = new Set<Ip>()
  for (const slice of slices)
    if (slice.family === family && slice.ports.length > 0) addLocal(ips, slice, nodeName)
  return ips.size
}

function addLocal(ips: Set<Ip>, { endpoints }: EndpointSlice, nodeName: string): void {
  for (const { ip, conditions, nodeName: its } of endpoints)
    if (conditions.ready && its === nodeName) ips.add(ip)
}
