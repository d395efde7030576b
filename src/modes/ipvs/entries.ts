import { anyContains, type Cidr } from '../../base/cidr.ts'
import { FAMILIES, type Family, familyOf, type Ip } from '../../base/ip.ts'
import type { IpsetEntry } from '../../kernel/ipset/state.ts'
import type { Backend, Frontend, ServiceFrontends } from '../../model/frontend.ts'
import { PROTOCOL_NUMBERS } from '../common/octet-keys.ts'
import { NODE_PORT_SETS } from './layout.ts'
import type { Place, PlacedPort } from './places.ts'
import { type SetStem, setName } from './set-names.ts'

/** Gets each entry that a Service needs; some of them twice. */
type EntrySink = (set: string, entry: IpsetEntry) => void

/** What kube-proxy's IPVS mode has in its sets for a Service (pkg/proxy/ipvs, syncProxyRules); addresses apart. */
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

/** KUBE-IPVS-IPS records the addresses that are bound. */
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

/**
 * Guards an address by its source ranges. The node reaches a bound address from that very address: where the model lets
 * it in, the pair is in a set of its own.
 */
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

/** A hash of networks cannot hold the one of length 0: its two halves stand for it. */
function halves(range: Cidr): readonly Cidr[] {
  if (range.bits > 0) return [range]
  const rest = '\0'.repeat(range.ip.length - 1)
  return [
    { ip: `\0${rest}`, bits: 1 },
    { ip: `\x80${rest}`, bits: 1 },
  ]
}

/** Endpoints on this node, which may meet themselves. */
function addLoopBack({ port: { family, protocol, cluster, local } }: PlacedPort, sink: EntrySink): void {
  const set = setName('LOOP-BACK', family)
  const add = ({ ip, port }: Backend) =>
    sink(set, { ip, protocol: PROTOCOL_NUMBERS[protocol], port, ip2: ip })
  for (const backend of cluster) if (backend.local) add(backend)
  for (const backend of local) if (backend.local) add(backend)
}
