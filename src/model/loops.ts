import { formatIp, type Ip } from '../base/ip.ts'
import type { EndpointSlice } from './endpoint.ts'
import { addRefusal, type Findings } from './refusal.ts'
import type { Service } from './service.ts'
import type { SliceList } from './slice-groups.ts'

/**
 * The slices without endpoints that are ClusterIPs of their own Service: traffic would go in circles (CVE-2021-25740).
 * External and load-balancer addresses may be endpoints: they are the node's own where the pods use its network.
 */
export function withoutLoops(slices: SliceList, service: Service, findings?: Findings): SliceList {
  const own = service.clusterIps
  for (let index = 0; index < slices.length; index++) {
    const slice = slices[index]
    if (slice !== undefined && hasOwn(slice, own)) return slices.map(its => withoutOwn(its, own, findings))
  }
  return slices
}

function hasOwn({ endpoints }: EndpointSlice, own: readonly Ip[]): boolean {
  for (let index = 0; index < endpoints.length; index++)
    if (own.includes(endpoints[index]?.ip ?? '')) return true
  return false
}

function withoutOwn(slice: EndpointSlice, own: readonly Ip[], findings: Findings | undefined): EndpointSlice {
  const endpoints = slice.endpoints.filter(endpoint => {
    if (!own.includes(endpoint.ip)) return true
    if (findings !== undefined) refuseEndpoint(findings, slice, endpoint.ip)
    return false
  })
  return { ...slice, endpoints }
}

function refuseEndpoint(findings: Findings, slice: EndpointSlice, ip: Ip): void {
  addRefusal(findings, {
    object: `EndpointSlice ${slice.key}`,
    field: 'endpoints',
    value: formatIp(ip),
    reason: 'the ClusterIP of the Service itself, to which its traffic would return',
  })
}
