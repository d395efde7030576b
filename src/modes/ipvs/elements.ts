import type { Family, Ip } from '../../base/ip.ts'
import type { VirtualAddress } from '../../kernel/ipvs/state.ts'
import { NF_DROP, NFT_GOTO } from '../../kernel/nft/constants.ts'
import type { Element, Verdict } from '../../kernel/nft/state.ts'
import type { ServiceFrontends } from '../../model/frontend.ts'
import { CHAIN_REJECT } from '../common/chain-names.ts'
import { commentOf } from '../common/element-group.ts'
import { portData, portKey } from '../common/octet-keys.ts'
import type { Place, PlacedPort } from './places.ts'

const REJECT: Verdict = { code: NFT_GOTO, chain: CHAIN_REJECT }
const DROP: Verdict = { code: NF_DROP, chain: undefined }

/** What the sets and maps of our own table have for a port. */
export function elementsOf(placed: PlacedPort): readonly Element[] {
  const elements: Element[] = []
  const comment = commentOf(placed.port)
  for (const place of placed.places) {
    if (place.hidden) continue
    const key = place.ip + portKey(place.protocol, place.port)
    const verdict = verdictOf(place)
    if (verdict !== undefined) {
      elements.push({ set: 'verdicts', key, data: verdict, comment })
      continue
    }
    const { clusterHome, localHome, port } = placed
    const { route } = place.frontend
    const goesTo = (set: 'cluster-lists' | 'local-lists', home: VirtualAddress | undefined) => {
      if (home === undefined || (home.ip === place.ip && home.port === place.port)) return
      elements.push({ set, key, data: home.ip + portData(home.port), comment })
    }
    if (route.kind === 'external-cluster' && port.affinityTimeoutS > 0) goesTo('cluster-lists', clusterHome)
    if (route.kind !== 'external-local') continue
    goesTo('cluster-lists', clusterHome)
    if (place.backends.length === 0) elements.push({ set: 'no-local', key, data: undefined, comment })
    else goesTo('local-lists', localHome)
  }
  return elements
}

/**
 * Lets load balancers that ask at the balanced address itself meet the health check node port, which is a process of
 * this node: every other port of a bound address is hidden. What a Service has at that port of a shared address comes first.
 */
export function healthCheckElements(
  { healthCheck, ports }: ServiceFrontends,
  { family, addresses }: { readonly family: Family; readonly addresses: ReadonlySet<Ip> },
): readonly Element[] {
  if (healthCheck === undefined) return []
  const elements = new Map<Ip, Element>()
  for (const port of ports)
    for (const { kind, ip } of port.family === family ? port.frontends : []) {
      if (kind !== 'LoadBalancerIP' || ip === undefined || !addresses.has(ip)) continue
      const key = ip + portKey('TCP', healthCheck.port)
      elements.set(ip, { set: 'health-checks', key, data: undefined, comment: commentOf(port) })
    }
  for (const { protocol, frontends } of ports)
    for (const { ip, port } of frontends)
      if (ip !== undefined && protocol === 'TCP' && port === healthCheck.port) elements.delete(ip)
  return [...elements.values()]
}

/** What answers everybody at once; undefined where IPVS is asked. */
function verdictOf({ frontend: { route }, backends }: Place): Verdict | undefined {
  switch (route.kind) {
    case 'reject':
      return REJECT
    case 'drop':
      return DROP
    case 'internal':
      if (backends.length > 0) return undefined
      return route.over === 'local' ? DROP : REJECT
    case 'external-cluster':
      return backends.length > 0 ? undefined : REJECT
    case 'external-local':
      return undefined
  }
}
