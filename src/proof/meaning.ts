import {
  anyContains,
  type Cidr,
  FAMILIES,
  type Family,
  familyOf,
  type Ip,
  isLinkLocal,
  isLoopback,
  isUnspecified,
} from '../base/ip.ts'
import { type Octets, u16be } from '../base/octets.ts'
import { type Config, GATE_LOCALHOST } from '../config/config.ts'
import { type Promises, USUAL_PROMISES } from '../model/promises.ts'
import type { Protocol, Service } from '../model/service.ts'
import type { NodeInfo, Snapshot } from '../model/snapshot.ts'

/*
 * The fate of the first packet of a connection that Kubernetes specifies: written from the documents, for kube-proxy's
 * nftables mode and docs/differences.md. Where another mode differs on purpose, its promises name that. It shares no code
 * with model/resolve and no code with a mode, because it judges them.
 */

export type MeaningConfig = Pick<
  Config,
  | 'nodeName'
  | 'serviceProxyName'
  | 'detectLocal'
  | 'masqueradeAll'
  | 'nodePortAddresses'
  | 'allowedExternalCidrs'
  | 'allowedLoadBalancerCidrs'
  | 'allowServiceExternalIps'
  | 'bindAddress'
  | 'featureGates'
> & {
  /** The policy of Services without the annotation; `random` by default. */
  readonly balance?: Config['balance']
  /** Nftables mode's promises by default. */
  readonly promises?: Promises
}

export function promisesOf({ promises = USUAL_PROMISES }: MeaningConfig): Promises {
  return promises
}

export type Fate =
  /** `refuse`: rejected or dropped, whichever rule comes first. */
  | { readonly kind: 'pass' | 'reject' | 'drop' | 'refuse' }
  | {
      readonly kind: 'endpoints'
      /** Address and port of each, which are chosen equally often, or as `shares` says. */
      readonly endpoints: readonly Octets[]
      readonly shares?: Shares | undefined
      readonly masquerade: boolean
      /** Seconds for which a client keeps its endpoint; 0 without session affinity. */
      readonly affinityS: number
    }

/** Shares of connections by kprobe.io/balance and kprobe.io/weights, in the order of the endpoints; their sum is 1. */
export interface Shares {
  readonly of: readonly number[]
  /** By how much of itself a share may differ. */
  readonly tolerance: number
}

export const PASS: Fate = { kind: 'pass' }
export const REJECT: Fate = { kind: 'reject' }
export const DROP: Fate = { kind: 'drop' }
export const REFUSE: Fate = { kind: 'refuse' }

/** The required fates at one place, by the origin of a packet: pods, processes of this node, others. */
export interface Place {
  /** Undefined for a node port. */
  readonly ip: Ip | undefined
  readonly protocol: Protocol
  readonly port: number
  /** The service port as kube-proxy prints it. */
  readonly name: string
  readonly pod: Fate
  readonly node: Fate
  readonly other: Fate
  /** Clients outside of these are dropped; undefined for no limit. */
  readonly allowed: readonly Cidr[] | undefined
}

export type PodSource =
  | { readonly kind: 'cidr'; readonly cidr: Cidr }
  | { readonly kind: 'interface'; readonly name: string; readonly isPrefix: boolean }

export interface FamilyMeaning {
  readonly family: Family
  readonly podSource: PodSource | undefined
  readonly masqueradeAll: boolean
  readonly promises: Promises
  /** ClusterIPs, external and load-balancer addresses with their ports. */
  readonly places: readonly Place[]
  readonly nodePorts: readonly Place[]
  readonly healthCheckPorts: readonly number[]
  addressesAt(place: Pick<Place, 'protocol' | 'port'>): Iterable<Ip>
  /** Addresses that serve node ports; undefined for every address of this node but loopback. */
  readonly nodePortAddresses: readonly Ip[] | undefined
  /** A relay of the daemon serves node ports at localhost, for TCP and UDP. */
  readonly forwardsLocalhost: boolean
  readonly clusterIps: ReadonlySet<Ip>
  readonly serviceCidrs: readonly Cidr[]
  /**
   * Addresses of endpoints whose connections to themselves are masqueraded: those on this node, or all where the mode
   * promises so.
   */
  readonly localEndpoints: ReadonlySet<Ip>
  readonly nodeIps: ReadonlySet<Ip>
  /** Addresses of its devices, whatever the Node object has. */
  readonly localIps: ReadonlySet<Ip>
}

/** The older one of several Services with the same claim gets it. */
export function bySeniority(a: Service, b: Service): number {
  if (a === b) return 0
  const [ageA, ageB] = [a.creationTimestamp || '~', b.creationTimestamp || '~']
  const first = ageA === ageB ? (a.uid === b.uid ? a.key < b.key : a.uid < b.uid) : ageA < ageB
  return first ? -1 : 1
}

export function familiesOf({ clusterIps, headless, externalIps }: Service): readonly Family[] {
  const members = headless === 'ports' ? externalIps : clusterIps
  return FAMILIES.filter(family => members.some(ip => familyOf(ip) === family))
}

export function clusterIpOf({ clusterIps, headless }: Service, family: Family): Ip | undefined {
  return headless === undefined ? clusterIps.find(ip => familyOf(ip) === family) : undefined
}

export interface Here {
  readonly snapshot: Snapshot
  readonly config: MeaningConfig
  readonly node: NodeInfo | undefined
  /** Addresses of the Node, its primary ones first. */
  readonly ips: readonly Ip[]
  readonly clusterIps: { has(ip: Ip): boolean }
  readonly apiServers: ReadonlySet<Octets>
}

export function hereOf(snapshot: Snapshot, config: MeaningConfig, clusterIps: Here['clusterIps']): Here {
  const node = snapshot.node?.name === config.nodeName ? snapshot.node : undefined
  const { bindAddress } = config
  const own = bindAddress === undefined || isUnspecified(bindAddress) ? [] : [bindAddress]
  return {
    snapshot,
    config,
    node,
    ips: [...own, ...(node?.ips ?? [])],
    clusterIps,
    apiServers: apiServersOf(snapshot),
  }
}

export const API_SERVICE = 'default/kubernetes'

/** The addresses that kprobe dials, and the TCP endpoints of the slice default/kubernetes, which API servers write. */
function apiServersOf({ apiEndpoints, slices }: Snapshot): ReadonlySet<Octets> {
  const all = slices.get(API_SERVICE) ?? []
  const own = all.filter(({ key }) => key === API_SERVICE)
  const listed = (own.length > 0 ? own : all).flatMap(({ ports, endpoints }) =>
    ports
      .filter(({ protocol }) => protocol === 'TCP')
      .flatMap(({ port }) => endpoints.map(({ ip }) => ip + u16be(port))),
  )
  return new Set([...apiEndpoints.map(({ ip, port }) => ip + u16be(port)), ...listed])
}

export function portKey({ protocol, port }: Pick<Place, 'protocol' | 'port'>): string {
  return `${protocol}${port}`
}

export function placeKey(place: Pick<Place, 'protocol' | 'port' | 'ip'>): string {
  return `${portKey(place)} ${place.ip}`
}

export function podSourceOf({ config, node }: Here, family: Family): PodSource | undefined {
  const { detectLocal } = config
  switch (detectLocal.kind) {
    case 'BridgeInterface':
      return { kind: 'interface', name: detectLocal.name, isPrefix: false }
    case 'InterfaceNamePrefix':
      return { kind: 'interface', name: detectLocal.prefix, isPrefix: true }
    default: {
      const cidrs = detectLocal.kind === 'NodeCIDR' ? (node?.podCidrs ?? []) : detectLocal.cidrs
      const cidr = cidrs.find(({ ip }) => familyOf(ip) === family)
      return cidr === undefined ? undefined : { kind: 'cidr', cidr }
    }
  }
}

/** An empty selection, of a family or at all, is every address; a Node without addresses has none that are primary. */
export function nodePortAddressesOf(
  { config, snapshot, ips }: Here,
  family: Family,
): readonly Ip[] | undefined {
  const { primary, cidrs } = config.nodePortAddresses
  const own = cidrs.filter(({ ip }) => familyOf(ip) === family)
  if (primary && ips.length === 0 && own.length === 0) return []
  const first = primary ? ips.find(ip => familyOf(ip) === family) : undefined
  const usable = first === undefined || isLoopback(first) ? [] : [first]
  if ((usable.length === 0 && own.length === 0) || own.some(({ bits }) => bits === 0)) {
    if (!promisesOf(config).bindsAddresses) return undefined
    return snapshot.localIps.filter(ip => familyOf(ip) === family && !isLoopback(ip) && !isLinkLocal(ip))
  }
  const withLoopback = family === 'IPv4' && promisesOf(config).answersAtLoopback
  const found = snapshot.localIps.filter(ip => (withLoopback || !isLoopback(ip)) && anyContains(own, ip))
  return [...new Set([...usable, ...found])]
}

const LOCALHOST: Readonly<Record<Family, Ip>> = {
  IPv4: '\x7f\0\0\x01',
  IPv6: `${'\0'.repeat(15)}\x01`,
}

/** A range of all addresses does not request localhost (KEP-6032). */
export function forwardsLocalhost(config: MeaningConfig, family: Family): boolean {
  const { nodePortAddresses, featureGates } = config
  if (promisesOf(config).bindsAddresses) return false
  const loopbacks = nodePortAddresses.cidrs.filter(({ ip, bits }) => bits > 0 && isLoopback(ip))
  return featureGates[GATE_LOCALHOST] !== false && anyContains(loopbacks, LOCALHOST[family])
}
