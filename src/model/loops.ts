import { formatIp, type Ip } from '../base/ip.ts'
import type { EndpointSlice } from './endpoint.ts'
import { addRefusal, type Findings } from './refusal.ts'
import type { Service } from './service.ts'
import type { SliceList } from './slice-groups.ts'

/** The slices without endpoints that are addresses of their own Service: traffic would go in circles (CVE-2021-25740). */
export function withoutLoops(slices: SliceList, service: Service, findings?: Findings): SliceList {
  const own = ownAddresses(service)
  for (let index = 0; index < slices.length; index++) {
    const slice = slices[index]
    if (slice !== undefined && hasOwn(slice, own)) return slices.map(its => withoutOwn(its, own, findings))
  }
  return slices
}

/** Few Services have more addresses than a list finds quickest. */
const LIST_MAX = 8

type Addresses = readonly Ip[] | Set<Ip>

function ownAddresses({ clusterIps, externalIps, loadBalancerIps }: Service): Addresses {
  if (externalIps.length + loadBalancerIps.length === 0) return clusterIps
  const list = [...clusterIps, ...externalIps, ...loadBalancerIps]
  return list.length <= LIST_MAX ? list : new Set(list)
}

function isOwn(own: Addresses, ip: Ip): boolean {
  return own instanceof Set ? own.has(ip) : own.includes(ip)
}

function hasOwn({ endpoints }: EndpointSlice, own: Addresses): boolean {
  for (let index = 0; index < endpoints.length; index++)
    if (isOwn(own, endpoints[index]?.ip ?? '')) return true
  return false
}

function withoutOwn(slice: EndpointSlice, own: Addresses, findings: Findings | undefined): EndpointSlice {
  const endpoints = slice.endpoints.filter(endpoint => {
    if (!isOwn(own, endpoint.ip)) return true
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
