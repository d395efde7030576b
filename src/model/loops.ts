import { formatIp, type Ip } from '../base/ip.ts'
import type { EndpointSlice } from './endpoint.ts'
import { addRefusal, type Findings } from './refusal.ts'
import type { Service } from './service.ts'

/** The slices without endpoints that are addresses of their own Service: traffic would go in circles (CVE-2021-25740). */
export function withoutLoops(
  slices: readonly EndpointSlice[],
  service: Service,
  findings?: Findings,
): readonly EndpointSlice[] {
  const own = ownAddresses(service)
  return slices.some(slice => slice.endpoints.some(endpoint => own(endpoint.ip)))
    ? slices.map(slice => withoutOwn(slice, own, findings))
    : slices
}

/** Few Services have more addresses than a list finds quickest. */
const LIST_MAX = 8

function ownAddresses(service: Service): (ip: Ip) => boolean {
  const { clusterIps, externalIps, loadBalancerIps } = service
  const list =
    externalIps.length + loadBalancerIps.length === 0
      ? clusterIps
      : [...clusterIps, ...externalIps, ...loadBalancerIps]
  if (list.length <= LIST_MAX) return ip => list.includes(ip)
  const set = new Set(list)
  return ip => set.has(ip)
}

function withoutOwn(
  slice: EndpointSlice,
  own: (ip: Ip) => boolean,
  findings: Findings | undefined,
): EndpointSlice {
  const endpoints = slice.endpoints.filter(endpoint => {
    if (!own(endpoint.ip)) return true
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
    reason: 'an address of the Service itself, to which its traffic would return',
  })
}
