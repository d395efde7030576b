import { anyContains, type Cidr, type Family, familyOf, type Ip } from '../base/ip.ts'
import { type Octets, u16be } from '../base/octets.ts'
import type { Protocol, Service, ServiceBalance } from '../model/service.ts'
import { destinationsOf, type PortDestinations } from './endpoints.ts'
import {
  clusterIpOf,
  DROP,
  type FamilyMeaning,
  type Fate,
  type Here,
  PASS,
  type Place,
  type PodSource,
  placeKey,
  portKey,
  promisesOf,
  REJECT,
} from './meaning.ts'

export interface PlaceClaim {
  readonly service: Service
  /** Undefined where the address is claimed and not served. */
  readonly place: Place | undefined
  /** The address is the Node's: the claim yields to an older Service with the node port of this number. */
  readonly yields: boolean
  /** Every port of a Service is preferred to a health check node port. */
  readonly isHealthCheck: boolean
}

export interface Claims {
  readonly service: Service
  readonly clusterIp: Ip | undefined
  readonly places: ReadonlyMap<string, PlaceClaim>
  /** Places by portKey; undefined for a health check node port. */
  readonly nodePorts: ReadonlyMap<string, Place | undefined>
  readonly onNode: ReadonlySet<Octets>
}

interface ClaimsContext {
  readonly here: Here
  readonly family: Family
  readonly podSource: FamilyMeaning['podSource']
}

export class ClaimsDraft {
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
        balance: this.#balanceOf(service),
        silent: this.#silentOf(service, port.protocol),
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

  #balanceOf({ balance }: Service): ServiceBalance | undefined {
    const { config } = this.#here
    const { policy = config.balance ?? 'random', weights = [] } = balance ?? {}
    const isUsual = policy === 'random' && weights.length === 0
    return isUsual || !promisesOf(config).balances ? undefined : { policy, weights }
  }

  /** The addresses and ports that get no connections as long as others are there. */
  #silentOf({ key, failsOver }: Service, protocol: Protocol): readonly Octets[] {
    const { config, snapshot } = this.#here
    const silent = snapshot.silent.get(key)
    if (silent === undefined || failsOver !== true || !promisesOf(config).failsOver) return []
    return silent.endpoints.flatMap(its => (its.protocol === protocol ? [its.ip + u16be(its.port)] : []))
  }

  #fatesOf(service: Service, found: PortDestinations) {
    for (const endpoint of found.onNode) this.#onNode.add(endpoint)
    const { config } = this.#here
    const sharesOf = new Map([
      [found.cluster, found.clusterShares],
      [found.local, found.localShares],
    ])
    const to = (endpoints: readonly Octets[], masquerade: boolean, none: Fate = DROP): Fate => {
      const shares = sharesOf.get(endpoints)
      if (endpoints.length === 0) return none
      return { kind: 'endpoints', endpoints, shares, masquerade, affinityS: service.affinityTimeoutS }
    }
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
