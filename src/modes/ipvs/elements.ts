import { anyContains, type Cidr } from '../../base/cidr.ts'
import { FAMILIES, type Family, familyOf, type Ip } from '../../base/ip.ts'
import type { IpsetEntry } from '../../kernel/ipset/state.ts'
import type { VirtualAddress } from '../../kernel/ipvs/state.ts'
import { NF_DROP, NFT_GOTO } from '../../kernel/nft/constants.ts'
import type { Verdict } from '../../kernel/nft/expression.ts'
import type { Element } from '../../kernel/nft/state.ts'
import type { Backend, Frontend, ServiceFrontends } from '../../model/frontend.ts'
import { CHAIN_REJECT } from '../common/chain-names.ts'
import { commentOf } from '../common/element-group.ts'
import { PROTOCOL_NUMBERS, portData, portKey } from '../common/octet-keys.ts'
import { NODE_PORT_SETS } from './layout.ts'
import type { Place, PlacedPort } from './places.ts'
import { type SetStem, setName } from './set-names.ts'

const REJECT: Verdict = { code: NFT_GOTO, chain: CHAIN_REJECT }
const DROP: Verdict = { code: NF_DROP, chain: undefined }

/** Makes the elements of a port in the sets and maps of our own table. */
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
 * Lets the health checks of load balancers reach the health check node port at the balanced address itself.
 * That port belongs to a process of this node, and all other ports of a bound address are hidden. A Service
 * port with the same number at a shared address takes precedence.
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

/** Gives the verdict for every packet to a place; undefined where IPVS balances. */
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

/** Receives each entry that a Service needs. Some entries arrive twice. */
type EntrySink = (set: string, entry: IpsetEntry) => void

/** Adds the entries of kube-proxy's sets for a Service (pkg/proxy/ipvs, syncProxyRules), without the addresses. */
export function addEntries(service: ServiceFrontends, placed: readonly PlacedPort[], sink: EntrySink): void {
  for (const ofPort of placed) {
    for (const place of ofPort.places) addPlace(place, sink)
    addLoopBack(ofPort, sink)
  }
  const { healthCheck } = service
  if (healthCheck === undefined) return
  for (const family of FAMILIES)
    if (healthCheck.local[family] !== undefined)
      sink(setName('HEALTH-CHECK-NODE-PORT', family), { port: healthCheck.port })
}

/** Makes the entry of a bound address in KUBE-IPVS-IPS. */
export function addressEntry(ip: Ip): { readonly set: string; readonly entry: IpsetEntry } {
  return { set: setName('IPVS-IPS', familyOf(ip)), entry: { ip } }
}

function addPlace(place: Place, sink: EntrySink): void {
  const { protocol, ip, port, frontend } = place
  const family = familyOf(ip)
  const entry: IpsetEntry = { ip, protocol: PROTOCOL_NUMBERS[protocol], port }
  const isLocal = frontend.route.kind === 'external-local'
  const add = (stem: SetStem, its: IpsetEntry) => sink(setName(stem, family), its)
  switch (frontend.kind) {
    case 'ClusterIP':
      add('CLUSTER-IP', entry)
      return
    case 'ExternalIP':
      add(isLocal ? 'EXTERNAL-IP-LOCAL' : 'EXTERNAL-IP', entry)
      return
    case 'LoadBalancerIP':
      add('LOAD-BALANCER', entry)
      if (isLocal) add('LOAD-BALANCER-LOCAL', entry)
      addRanges(frontend, { ip, entry, family }, sink)
      return
    case 'NodePort': {
      const sets = NODE_PORT_SETS[protocol]
      const its = protocol === 'SCTP' ? entry : { port }
      add(sets.all, its)
      if (isLocal) add(sets.local, its)
      return
    }
  }
}

/** Adds the source ranges. A set of its own allows the node, which connects to a bound address from that address. */
function addRanges(
  { sourceRanges }: Frontend,
  { ip, entry, family }: { readonly ip: Ip; readonly entry: IpsetEntry; readonly family: Family },
  sink: EntrySink,
): void {
  if (sourceRanges === undefined) return
  sink(setName('LOAD-BALANCER-FW', family), entry)
  const ranges = setName('LOAD-BALANCER-SOURCE-CIDR', family)
  for (const range of sourceRanges) {
    if (range.ip === ip && range.bits === ip.length * 8) continue
    for (const half of halves(range)) sink(ranges, { ...entry, ip2: half.ip, prefix2: half.bits })
  }
  if (anyContains(sourceRanges, ip)) sink(setName('LOAD-BALANCER-SOURCE-IP', family), { ...entry, ip2: ip })
}

/** Splits a range of length 0 into its halves, because a hash of networks cannot hold it. */
function halves(range: Cidr): readonly Cidr[] {
  if (range.bits > 0) return [range]
  const rest = '\0'.repeat(range.ip.length - 1)
  return [
    { ip: `\0${rest}`, bits: 1 },
    { ip: `\x80${rest}`, bits: 1 },
  ]
}

/** Adds the endpoints on this node, which may connect to themselves (hairpin). */
function addLoopBack({ port: { family, protocol, cluster, local } }: PlacedPort, sink: EntrySink): void {
  const set = setName('LOOP-BACK', family)
  const add = ({ ip, port }: Backend) =>
    sink(set, { ip, protocol: PROTOCOL_NUMBERS[protocol], port, ip2: ip })
  for (const backend of cluster) if (backend.local) add(backend)
  for (const backend of local) if (backend.local) add(backend)
}
