import { Pauses, type Steps } from '../base/clock.ts'
import { type Family, familyOf, type Ip, mergeCidrs } from '../base/ip.ts'
import type { Octets } from '../base/octets.ts'
import type { Service, ServiceKey } from '../model/service.ts'
import {
  bySeniority,
  type Claims,
  claimsOf,
  type FamilyMeaning,
  type Here,
  isPreferred,
  nodePortAddressesOf,
  type Place,
  type PlaceClaim,
  placeKey,
  podSourceOf,
  portKey,
  promisesOf,
  relaysLocalhost,
} from './meaning.ts'
import { addressOf, isSamePlace } from './packet-class.ts'

/** The parts of the meaning of one family that a change concerns. */
export interface TouchedMeaning {
  /** Places whose fates differ, by placeKey. */
  readonly places: Set<string>
  /** Node ports whose fates or addresses differ, by portKey. */
  readonly nodePorts: Set<string>
  /** Places that are no place of a Service any more. */
  readonly vacant: Map<string, Place & { readonly ip: Ip }>
  /** Addresses that became a ClusterIP, or ceased to be one. */
  readonly clusterIps: Set<Ip>
  /** Node ports that are served no more, by portKey. */
  readonly closed: Map<string, Place>
}

/** The meaning of one family. */
export class FamilyMeanings implements FamilyMeaning {
  readonly family: Family
  readonly podSource: FamilyMeaning['podSource']
  readonly masqueradeAll: boolean
  readonly promises: FamilyMeaning['promises']
  readonly nodePortAddresses: readonly Ip[] | undefined
  readonly relaysLocalhost: boolean
  readonly serviceCidrs: FamilyMeaning['serviceCidrs']
  readonly nodeIps: ReadonlySet<Ip>
  readonly localIps: ReadonlySet<Ip>
  readonly localEndpoints = new Set<Ip>()
  readonly #follows: boolean
  readonly #places = new Map<string, Place>()
  readonly #nodePorts = new Map<string, Place>()
  readonly #clusterIps = new Map<Ip, number>()
  readonly #byPort = new Lists<string, Ip>()
  /** Places by address. */
  readonly #byAddress = new Lists<Ip, string>()
  readonly #claims = new Map<ServiceKey, Claims>()
  /** Claims of each place and of each node port; nearly all are one. */
  readonly #atPlace = new Lists<string, ServiceKey>()
  readonly #atNodePort = new Lists<string, ServiceKey>()
  /** Places that yield to node ports, by portKey. */
  readonly #yielding = new Lists<string, string>()
  /** Services by address of their endpoints. */
  readonly #users = new Lists<Ip, ServiceKey>()
  /** What may differ since the last settle(). */
  readonly #open = {
    places: new Set<string>(),
    nodePorts: new Set<string>(),
    addresses: new Set<Ip>(),
    clusterIps: new Map<Ip, boolean>(),
  }

  constructor(here: Here, family: Family, follows: boolean) {
    const { config, snapshot, ips } = here
    this.promises = promisesOf(config)
    const isClosed = config.serviceProxyName === undefined && this.promises.closesUnused
    const cidrs = isClosed ? snapshot.serviceCidrs.values().flat() : []
    this.family = family
    this.#follows = follows
    this.podSource = podSourceOf(here, family)
    this.masqueradeAll = config.masqueradeAll
    this.nodePortAddresses = nodePortAddressesOf(here, family)
    this.relaysLocalhost = relaysLocalhost(config, family)
    this.serviceCidrs = mergeCidrs(cidrs.filter(({ ip }) => familyOf(ip) === family))
    this.nodeIps = new Set([...ips, ...snapshot.localIps])
    this.localIps = new Set(snapshot.localIps)
  }

  get places(): Iterable<Place> {
    return this.#places.values()
  }

  get nodePorts(): Iterable<Place> {
    return this.#nodePorts.values()
  }

  get healthCheckPorts(): Iterable<number> {
    return [...this.#claims.values()].flatMap(({ service, clusterIp }) =>
      service.healthCheckNodePort === 0 || clusterIp === undefined ? [] : [service.healthCheckNodePort],
    )
  }

  get clusterIps(): Iterable<Ip> {
    return this.#clusterIps.keys()
  }

  isClusterIp(ip: Ip): boolean {
    return this.#clusterIps.has(ip)
  }

  addressesAt(place: Pick<Place, 'protocol' | 'port'>): Iterable<Ip> {
    return this.#byPort.of(portKey(place))
  }

  /** The service ports and node ports that an address serves. */
  servedAt(ip: Ip): readonly Place[] {
    const places = [...this.#byAddress.of(ip)].flatMap(key => this.#places.get(key) ?? [])
    return this.nodePortAddresses?.includes(ip) === true ? [...places, ...this.nodePorts] : places
  }

  placeAt(key: string): Place | undefined {
    return this.#places.get(key)
  }

  nodePortAt(key: string): Place | undefined {
    return this.#nodePorts.get(key)
  }

  put(here: Here, service: Service): void {
    const claims = claimsOf({ here, family: this.family, podSource: this.podSource }, service)
    this.#claims.set(claims.service.key, claims)
    this.#note(claims, 1)
  }

  remove(key: ServiceKey): void {
    const claims = this.#claims.get(key)
    if (claims === undefined) return
    this.#note(claims, -1)
    this.#claims.delete(key)
  }

  #note(claims: Claims, by: 1 | -1): void {
    const { service, clusterIp, places, nodePorts } = claims
    const { key } = service
    if (clusterIp !== undefined) {
      if (!this.#open.clusterIps.has(clusterIp))
        this.#open.clusterIps.set(clusterIp, this.#clusterIps.has(clusterIp))
      count(this.#clusterIps, clusterIp, by)
    }
    for (const [at, { yields }] of places) {
      this.#atPlace.change(at, key, by)
      if (yields) this.#yielding.change(at.slice(0, at.indexOf(' ')), `${at}\n${key}`, by)
      this.#open.places.add(at)
    }
    for (const at of nodePorts.keys()) {
      this.#atNodePort.change(at, key, by)
      this.#open.nodePorts.add(at)
    }
    if (!this.#follows) return
    for (const ip of addressesOf(claims)) {
      this.#users.change(ip, key, by)
      this.#open.addresses.add(ip)
    }
  }

  /** Decides who keeps what several Services claim, for the first time. */
  *settleFirst(): Steps<void> {
    const pauses = new Pauses()
    const all = [...this.#claims.values()]
    const onNode = new Set(all.flatMap(claims => [...claims.onNode]))
    const { masqueradesItself } = this.promises
    for (const claims of onNode.size === 0 && !masqueradesItself ? [] : all) {
      if (pauses.due()) yield
      for (const endpoint of endpointsOf(claims))
        if (masqueradesItself || onNode.has(endpoint)) this.localEndpoints.add(addressOf(endpoint))
    }
    this.#open.addresses.clear()
    yield* this.settle()
  }

  /** The same for what differs since the last time, which it gives. */
  *settle(): Steps<TouchedMeaning> {
    const touched: TouchedMeaning = {
      places: new Set(),
      nodePorts: new Set(),
      vacant: new Map(),
      clusterIps: new Set(),
      closed: new Map(),
    }
    const { places, nodePorts, addresses, clusterIps } = this.#open
    yield* forEach(nodePorts, key => this.#settleNodePort(key, touched))
    yield* forEach(places, key => this.#settlePlace(key, touched))
    yield* forEach(addresses, ip => this.#settleAddress(ip, touched))
    for (const [ip, was] of clusterIps) if (was !== this.#clusterIps.has(ip)) touched.clusterIps.add(ip)
    for (const open of [places, nodePorts, addresses, clusterIps]) open.clear()
    return touched
  }

  #settleNodePort(key: string, touched: TouchedMeaning): void {
    for (const at of this.#yielding.of(key)) this.#open.places.add(at.slice(0, at.indexOf('\n')))
    const owner = this.#eldest(this.#atNodePort.of(key))
    const [before, after] = [this.#nodePorts.get(key), owner?.nodePorts.get(key)]
    if (before !== undefined && after !== undefined && isSamePlace(before, after)) return
    if (after !== undefined) this.#nodePorts.set(key, after)
    else if (before !== undefined) {
      this.#nodePorts.delete(key)
      touched.closed.set(key, before)
    }
    const place = after ?? before
    if (place === undefined) return
    touched.nodePorts.add(key)
    // What a place refuses may be sent to the node port of its number.
    if (this.promises.refusesBehind)
      for (const ip of this.#byPort.of(key)) touched.places.add(placeKey({ ...place, ip }))
  }

  #settlePlace(key: string, touched: TouchedMeaning): void {
    const [before, after] = [this.#places.get(key), this.#winnerAt(key)?.place]
    if (before === after || (before !== undefined && after !== undefined && isSamePlace(before, after)))
      return
    touched.places.add(key)
    if (after !== undefined) {
      this.#places.set(key, after)
      if (before === undefined) this.#occupy(after, 1, touched)
    } else if (before?.ip !== undefined) {
      this.#places.delete(key)
      this.#occupy(before, -1, touched)
      touched.vacant.set(key, { ...before, ip: before.ip })
    }
  }

  /** A place hides the node port of its number. */
  #occupy(place: Place, by: 1 | -1, touched: TouchedMeaning): void {
    const { ip } = place
    if (ip === undefined) return
    const key = portKey(place)
    this.#byPort.change(key, ip, by)
    if (this.#follows) this.#byAddress.change(ip, placeKey(place), by)
    const isServed = this.promises.refusesBehind || (this.nodePortAddresses?.includes(ip) ?? true)
    if (isServed && this.#nodePorts.has(key)) touched.nodePorts.add(key)
  }

  /** An endpoint on this node is told apart from others, whatever Service it is of. */
  #settleAddress(ip: Ip, touched: TouchedMeaning): void {
    const users = [...this.#users.of(ip)].flatMap(key => this.#claims.get(key) ?? [])
    const isLocal = this.promises.masqueradesItself
      ? users.length > 0
      : users.some(({ onNode }) => onNode.size > 0) && isLocalAmong(users, ip)
    if (isLocal === this.localEndpoints.has(ip)) return
    if (isLocal) this.localEndpoints.add(ip)
    else this.localEndpoints.delete(ip)
    for (const { places, nodePorts } of users) {
      for (const key of places.keys()) touched.places.add(key)
      for (const key of nodePorts.keys()) touched.nodePorts.add(key)
    }
  }

  #winnerAt(key: string): PlaceClaim | undefined {
    const elder = this.#eldest(this.#atNodePort.of(key.slice(0, key.indexOf(' '))))?.service
    let winner: PlaceClaim | undefined
    for (const service of this.#atPlace.of(key)) {
      const claim = this.#claims.get(service)?.places.get(key)
      if (claim === undefined) continue
      if (claim.yields && elder !== undefined && bySeniority(elder, claim.service) < 0) continue
      if (winner === undefined || isPreferred(claim, winner)) winner = claim
    }
    return winner
  }

  #eldest(keys: Iterable<ServiceKey>): Claims | undefined {
    let eldest: Claims | undefined
    for (const key of keys) {
      const claims = this.#claims.get(key)
      if (claims === undefined) continue
      if (eldest === undefined || bySeniority(claims.service, eldest.service) < 0) eldest = claims
    }
    return eldest
  }
}

export function* forEach<T>(items: Iterable<T>, run: (item: T) => void, cost = 1): Steps<void> {
  const pauses = new Pauses()
  for (const item of items) {
    run(item)
    if (pauses.due(cost)) yield
  }
}

/** Gives the endpoints that packets to the Service may be sent to. */
function* endpointsOf({ places, nodePorts }: Claims): Generator<Octets, void, undefined> {
  const seen = new Set<readonly Octets[]>()
  for (const place of [...[...places.values()].map(its => its.place), ...nodePorts.values()])
    for (const fate of place === undefined ? [] : [place.pod, place.node, place.other]) {
      if (fate.kind !== 'endpoints' || seen.has(fate.endpoints)) continue
      seen.add(fate.endpoints)
      yield* fate.endpoints
    }
}

function addressesOf(claims: Claims): ReadonlySet<Ip> {
  const addresses = new Set<Ip>()
  for (const endpoint of claims.onNode) addresses.add(addressOf(endpoint))
  for (const endpoint of endpointsOf(claims)) addresses.add(addressOf(endpoint))
  return addresses
}

function isLocalAmong(users: readonly Claims[], ip: Ip): boolean {
  for (const claims of users)
    for (const endpoint of endpointsOf(claims))
      if (endpoint.startsWith(ip) && users.some(({ onNode }) => onNode.has(endpoint))) return true
  return false
}

export function count(counts: Map<Ip, number>, ip: Ip, by: 1 | -1): void {
  const now = (counts.get(ip) ?? 0) + by
  if (now === 0) counts.delete(ip)
  else counts.set(ip, now)
}

/** Values by key. Nearly all keys have one, which is kept without a Set. */
export class Lists<K, V extends string> {
  readonly #lists = new Map<K, V | Set<V>>()

  of(key: K): Iterable<V> {
    const list = this.#lists.get(key)
    if (list === undefined) return []
    return typeof list === 'string' ? [list] : list
  }

  change(key: K, value: V, by: 1 | -1): void {
    const list = this.#lists.get(key)
    if (by === 1) {
      if (list === undefined) this.#lists.set(key, value)
      else if (typeof list !== 'string') list.add(value)
      else if (list !== value) this.#lists.set(key, new Set([list, value]))
    } else if (list === value) this.#lists.delete(key)
    else if (typeof list === 'object') {
      list.delete(value)
      if (list.size === 0) this.#lists.delete(key)
    }
  }
}
