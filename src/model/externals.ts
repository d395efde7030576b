import { anyContains, type Cidr, hostCidr, mergeCidrs } from '../base/cidr.ts'
import { type Family, familyOf, formatIp, type Ip } from '../base/ip.ts'
import type { AddressOwnership } from './address-ownership.ts'
import { otherClaimant, whyNotCaught } from './claims.ts'
import { type Findings, refuse } from './refusal.ts'
import type { Service } from './service.ts'

/** An address beside the ClusterIP at which all ports of a Service are reached. */
export interface External {
  readonly kind: 'ExternalIP' | 'LoadBalancerIP'
  readonly ip: Ip
  readonly sourceRanges: readonly Cidr[] | undefined
  readonly writtenRanges: readonly Cidr[] | undefined
}

const NONE: readonly External[] = []

/** The external and load-balancer addresses that may be caught, each once; the others are refused. */
export function externalsOf(
  ownership: AddressOwnership,
  service: Service,
  findings: Findings,
): readonly External[] {
  if (service.externalIps.length === 0 && service.loadBalancerIps.length === 0) return NONE
  const balanced = service.loadBalancerIps.filter(ip =>
    isCaught(ownership, service, findings, { kind: 'LoadBalancerIP', ip }),
  )
  const external = service.externalIps.filter(ip =>
    isCaught(ownership, service, findings, { kind: 'ExternalIP', ip }),
  )
  const ranges = {
    IPv4: clientsOf(ownership, service, 'IPv4', balanced),
    IPv6: clientsOf(ownership, service, 'IPv6', balanced),
  }
  return [
    // An address that is both is the one that source ranges guard, whatever becomes of it.
    ...external
      .filter(ip => !service.loadBalancerIps.includes(ip))
      .map((ip): External => ({ kind: 'ExternalIP', ip, ...OPEN })),
    ...balanced.map((ip): External => ({ kind: 'LoadBalancerIP', ip, ...ranges[familyOf(ip)] })),
  ]
}

type Clients = Pick<External, 'sourceRanges' | 'writtenRanges'>
const OPEN: Clients = { sourceRanges: undefined, writtenRanges: undefined }

function isCaught(
  ownership: AddressOwnership,
  service: Service,
  findings: Findings,
  wanted: Pick<External, 'kind' | 'ip'>,
): boolean {
  const { kind, ip } = wanted
  const reason = whyNotCaught(ownership.here, kind, ip) ?? whyNotFree(ownership, service, ip)
  if (reason === undefined) return true
  refuse(findings, fieldOf(kind), formatIp(ip), reason)
  return false
}

/** A ClusterIP cannot be claimed as an external address: CVE-2020-8554. */
function whyNotFree(ownership: AddressOwnership, service: Service, ip: Ip): string | undefined {
  const owners = ownership.claims.clusterIps.get(ip)
  if (owners === undefined) return undefined
  const other = otherClaimant(owners, service.key)
  return other === undefined ? 'the ClusterIP of this Service' : `the ClusterIP of Service ${other}`
}

export function fieldOf(kind: External['kind']): string {
  return kind === 'ExternalIP' ? 'spec.externalIPs' : 'status.loadBalancer.ingress'
}

/**
 * Who may connect to the load-balancer addresses of a family. When this node may, so may the
 * addresses themselves: they are the source of what the node sends to them once they are bound to it.
 */
function clientsOf(
  ownership: AddressOwnership,
  service: Service,
  family: Family,
  balanced: readonly Ip[],
): Clients {
  const sourceRanges = service.sourceRanges.filter(cidr => familyOf(cidr.ip) === family)
  if (sourceRanges.length === 0 || sourceRanges.some(cidr => cidr.bits === 0)) return OPEN
  const writtenRanges = service.writtenRanges.filter(cidr => familyOf(cidr.ip) === family)
  const nodeIp = ownership.here.primaryIps[family]
  if (nodeIp === undefined || !anyContains(sourceRanges, nodeIp)) return { sourceRanges, writtenRanges }
  const own = balanced.filter(ip => familyOf(ip) === family).map(hostCidr)
  return {
    sourceRanges: mergeCidrs([...sourceRanges, ...own]),
    writtenRanges: [...writtenRanges, ...own],
  }
}
