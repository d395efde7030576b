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
import { destinationsOf, type PortDestinations } from './endpoints.ts'

/*
 * What Kubernetes says must happen to the first packet of a connection: written from the documents, for kube-proxy's
 * nftables mode and docs/differences.md. Where another mode differs on purpose, its promises say so. It shares no code
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
  /** Nftables mode's promises by default. */
  readonly promises?: Promises
}

export function promisesOf({ promises = USUAL_PROMISES }: MeaningConfig): Promises {
  return promises
}

/** The required fate of a packet. */
export type Fate =
  /** `refuse`: rejected or dropped, whichever rule comes first. */
  | { readonly kind: 'pass' | 'reject' | 'drop' | 'refuse' }
  | {
      readonly kind: 'endpoints'
      /** Address and port of each, which are chosen equally often. */
      readonly endpoints: readonly Octets[]
      readonly masquerade: boolean
      /** Seconds for which a client keeps its endpoint; 0 without session affinity. */
      readonly affinityS: number
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

/** The way to recognize pods of this node. */
type PodSource =
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
  /** Addresses of its devices, whatever the Node says. */
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

function clusterIpOf({ clusterIps, headless }: Service, family: Family): Ip | undefined {
  return headless === undefined ? clusterIps.find(ip => familyOf(ip) === family) : undefined
}

export interface Here {
  readonly snapshot: Snapshot
  readonly config: MeaningConfig
  readonly node: NodeInfo | undefined
  /** Addresses of the Node, its primary ones first. */
  readonly ips: readonly Ip[]
  /** ClusterIPs of any proxy. */
  readonly clusterIps: { has(ip: Ip): boolean }
  /** Address and port of each API server. */
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

/** A Service's claim to one address, protocol and port. */
export interface PlaceClaim {
  readonly service: Service
  /** Undefined where the address is claimed and not served. */
  readonly place: Place | undefined
  /** The address is the Node's: the claim yields to an older Service with the node port of this number. */
  readonly yields: boolean
  /** Every port of a Service is preferred to a health check node port. */
  readonly isHealthCheck: boolean
}

/** All claims of a Service in one family. */
export interface Claims {
  readonly service: Service
  readonly clusterIp: Ip | undefined
  readonly places: ReadonlyMap<string, PlaceClaim>
  /** Places by portKey; undefined for a health check node port. */
  readonly nodePorts: ReadonlyMap<string, Place | undefined>
  /** Endpoints on this node: address and port. */
  readonly onNode: ReadonlySet<Octets>
}

export function portKey({ protocol, port }: Pick<Place, 'protocol' | 'port'>): string {
  return `${protocol}${port}`
}

export function placeKey(place: Pick<Place, 'protocol' | 'port' | 'ip'>): string {
  return `${portKey(place)} ${place.ip}`
}

interface ClaimsContext {
  readonly here: Here
  readonly family: Family
  readonly podSource: FamilyMeaning['podSource']
}

export function claimsOf(context: ClaimsContext, service: Service): Claims {
  return new ClaimsDraft(context).claimsOf(service)
}

/** Collects what a Service asks for in one family. */
class ClaimsDraft {
  readonly #here: Here
  readonly #family: Family
  readonly #places = new Map<string, PlaceClaim>()
  readonly #nodePorts = new Map<string, Place | undefined>()
  readonly #onNode = new Set<Octets>()
  readonly #podSource: PodSource | undefined

  constructor({ here, family, podSource }: ClaimsContext) {
    this.#here = here
    this.#family = family
    this.#podSource = podSource
  }

  claimsOf(service: Service): Claims {
    const clusterIp = clusterIpOf(service, this.#family)
    const { healthCheckNodePort } = service
    if (healthCheckNodePort !== 0 && clusterIp !== undefined)
      this.#nodePorts.set(`TCP${healthCheckNodePort}`, undefined)
    const numbers = new Set<string>()
    for (const port of service.ports) {
      const number = portKey(port)
      const nodePort = `${port.protocol}${port.nodePort}`
      const found = destinationsOf(this.#here.snapshot, service, {
        ...port,
        family: this.#family,
        node: this.#here,
      })
      const fates = this.#fatesOf(service, found)
      const name = port.name === '' ? service.key : `${service.key}:${port.name}`
      const at = { name, protocol: port.protocol, port: port.port, allowed: undefined }
      if (!numbers.has(number)) {
        if (clusterIp !== undefined) this.#put(service, { ...at, ...fates.internal, ip: clusterIp })
        for (const { isBlocked, ...external } of this.#externals(service, port, fates.external)) {
          this.#put(service, { ...at, ...fates.external, ...external }, isBlocked)
          if (!isBlocked) this.#putHealthCheck(service, external.ip)
        }
      }
      if (port.nodePort !== 0 && clusterIp !== undefined && this.#nodePorts.get(nodePort) === undefined)
        this.#nodePorts.set(nodePort, { ...at, ...fates.external, ip: undefined, port: port.nodePort })
      numbers.add(number)
    }
    return {
      service,
      clusterIp,
      places: this.#places,
      nodePorts: this.#nodePorts,
      onNode: this.#onNode,
    }
  }

  #put(service: Service, place: Place & { readonly ip: Ip }, isBlocked = false): void {
    const key = placeKey(place)
    if (this.#places.get(key)?.isHealthCheck === false) return
    const yields = this.#here.ips.includes(place.ip) && place.ip !== clusterIpOf(service, this.#family)
    this.#places.set(key, { service, place: isBlocked ? undefined : place, yields, isHealthCheck: false })
  }

  /** A load-balancer address that becomes one of this node serves the health check node port as well. */
  #putHealthCheck(service: Service, ip: Ip): void {
    const { healthCheckNodePort: port, loadBalancerIps, key: name } = service
    const isAsked = promisesOf(this.#here.config).bindsAddresses && port !== 0
    if (!isAsked || !loadBalancerIps.includes(ip)) return
    const at = { ip, protocol: 'TCP', port, name, allowed: undefined } as const
    const key = placeKey(at)
    if (this.#places.has(key)) return
    const place: Place = { ...at, pod: PASS, node: PASS, other: PASS }
    this.#places.set(key, { service, place, yields: false, isHealthCheck: true })
  }

  /** The fates at the ClusterIP, and at all other addresses. */
  #fatesOf(service: Service, found: PortDestinations) {
    for (const endpoint of found.onNode) this.#onNode.add(endpoint)
    const { config } = this.#here
    const to = (endpoints: readonly Octets[], masquerade: boolean, none: Fate = DROP): Fate =>
      endpoints.length === 0
        ? none
        : { kind: 'endpoints', endpoints, masquerade, affinityS: service.affinityTimeoutS }
    const isNone = found.cluster.length === 0
    const all = (fate: Fate) => ({ pod: fate, node: fate, other: fate })
    const toClusterIp = service.internalTrafficPolicy === 'Local' ? found.local : found.cluster
    const outside = to(toClusterIp, config.masqueradeAll || this.#podSource !== undefined)
    const internal = isNone
      ? all(REJECT)
      : { pod: to(toClusterIp, config.masqueradeAll), node: outside, other: outside }
    if (isNone) return { internal, external: all(REJECT) }
    if (service.externalTrafficPolicy === 'Cluster')
      return { internal, external: all(to(found.cluster, true)) }
    const external = {
      pod: to(found.cluster, false),
      node: to(found.cluster, true),
      other: to(found.local, false),
    }
    return { internal, external }
  }

  /** The addresses of a port beside the ClusterIP. A blocked one is claimed and not served. */
  #externals(service: Service, port: Service['ports'][number], { other }: Pick<Place, 'other'>) {
    const { loadBalancerIps, externalIps } = service
    const balanced = loadBalancerIps.filter(ip => this.#isAllowed(ip, 'loadBalancer'))
    // Packets that are rejected for everyone need no guard behind the translation.
    const isGuarded = other !== REJECT || !promisesOf(this.#here.config).refusesBehind
    const allowed = isGuarded ? this.#clientsOf(service, balanced) : undefined
    const isOpen = allowed === undefined || anyContains(allowed, this.#primary() ?? '')
    const isApi = (ip: Ip) =>
      (port.protocol === 'TCP' && this.#here.apiServers.has(ip + u16be(port.port))) || this.#takesApi(ip)
    const taken = this.#here.snapshot.listeners.get(service.key)?.taken ?? []
    const isTaken = (ip: Ip) =>
      taken.some(its => its.ip === ip && its.port === port.port && its.protocol === port.protocol) &&
      !anyContains(this.#here.config.allowedExternalCidrs, ip)
    const plain = externalIps.filter(
      ip => !loadBalancerIps.includes(ip) && this.#isAllowed(ip, 'external') && !isApi(ip) && !isTaken(ip),
    )
    return [
      ...plain.map(ip => ({ ip, allowed: undefined, isBlocked: false })),
      ...balanced.map(ip => ({ ip, allowed, isBlocked: isApi(ip) && !(isOpen && other !== REJECT) })),
    ].filter(({ ip }) => familyOf(ip) === this.#family)
  }

  /** Tests whether the claim would make an API server at this address unreachable, at any port. */
  #takesApi(ip: Ip): boolean {
    const { config, snapshot, apiServers } = this.#here
    if (!promisesOf(config).bindsAddresses || snapshot.localIps.includes(ip)) return false
    return [...apiServers].some(place => place.slice(0, -2) === ip)
  }

  #isAllowed(ip: Ip, kind: 'external' | 'loadBalancer'): boolean {
    const { config, ips, node, clusterIps } = this.#here
    if (clusterIps.has(ip)) return false
    const allowed = kind === 'external' ? config.allowedExternalCidrs : config.allowedLoadBalancerCidrs
    if (kind === 'external' && !config.allowServiceExternalIps) return false
    if (anyContains(allowed, ip)) return true
    if (allowed.length > 0) return false
    return kind === 'loadBalancer' || !(ips.includes(ip) || anyContains(node?.podCidrs ?? [], ip))
  }

  /** Clients of the load-balancer addresses; these addresses too where this node is among the clients. */
  #clientsOf({ sourceRanges }: Service, balanced: readonly Ip[]): readonly Cidr[] | undefined {
    const ranges = sourceRanges.filter(({ ip }) => familyOf(ip) === this.#family)
    if (ranges.length === 0 || ranges.some(({ bits }) => bits === 0)) return undefined
    const primary = this.#primary()
    if (primary === undefined || !anyContains(ranges, primary)) return ranges
    const own = balanced.filter(ip => familyOf(ip) === this.#family)
    return [...ranges, ...own.map(ip => ({ ip, bits: ip.length * 8 }))]
  }

  #primary(): Ip | undefined {
    return this.#here.ips.find(ip => familyOf(ip) === this.#family)
  }
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

/** A range of all addresses does not ask for localhost (KEP-6032). */
export function forwardsLocalhost(config: MeaningConfig, family: Family): boolean {
  const { nodePortAddresses, featureGates } = config
  if (promisesOf(config).bindsAddresses) return false
  const loopbacks = nodePortAddresses.cidrs.filter(({ ip, bits }) => bits > 0 && isLoopback(ip))
  return featureGates[GATE_LOCALHOST] !== false && anyContains(loopbacks, LOCALHOST[family])
}
