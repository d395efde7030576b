import { FAMILIES, type Family, familyOf, formatIp, type Ip } from '../base/ip.ts'
import { placeOwner } from './address-ownership.ts'
import { isApiAddress } from './api-server.ts'
import { wholeCandidatesOf } from './candidates.ts'
import { wholePlace } from './claims.ts'
import type { WholeAddresses } from './frontend.ts'
import { API_ADDRESS, type ServiceWork } from './port-frontends.ts'
import { refuse } from './refusal.ts'
import { externalRoute, needsForRoute } from './routes.ts'
import { selectBackends } from './select.ts'
import { survey } from './topology.ts'

/** The whole addresses of a headless Service without ports that no older Service has, by family. */
export function wholesOf(work: ServiceWork): readonly WholeAddresses[] {
  const ips = work.externals.filter(({ ip }) => isOwn(work, ip)).map(({ ip }) => ip)
  return FAMILIES.flatMap(family => {
    const ofFamily = ips.filter(ip => familyOf(ip) === family)
    return ofFamily.length === 0 ? [] : [wholeOf(work, family, ofFamily)]
  })
}

function wholeOf(
  { ownership, service, slices }: ServiceWork,
  family: Family,
  ips: readonly Ip[],
): WholeAddresses {
  const endpoints = wholeCandidatesOf(slices, family).map(({ endpoint }) => endpoint)
  const found = survey(endpoints, ownership.here)
  const route = externalRoute(service, found)
  const among = { endpoints, ports: 0 }
  const lists = selectBackends({ among, found, place: ownership.here }, needsForRoute(route))
  return { family, ips, route, affinityTimeoutS: service.affinityTimeoutS, ...lists }
}

function isOwn({ ownership, service, findings }: ServiceWork, ip: Ip): boolean {
  if (isApiAddress(ownership.here.apiServers, ip)) {
    refuse(findings, 'spec.externalIPs', formatIp(ip), API_ADDRESS)
    return false
  }
  const owner = placeOwner(ownership, service, wholePlace(ip))
  if (owner === undefined) return true
  const reason = `already claimed as a whole by Service ${owner.key}, which comes first`
  refuse(findings, 'spec.externalIPs', formatIp(ip), reason)
  return false
}
