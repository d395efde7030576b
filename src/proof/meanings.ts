import { append } from '../base/collections.ts'
import { FAMILIES, type Family, familyOf, type Ip, mergeCidrs } from '../base/ip.ts'
import type { Octets } from '../base/octets.ts'
import type { Service } from '../model/service.ts'
import type { Snapshot } from '../model/snapshot.ts'
import { type Claims, ClaimsDraft, type PlaceClaim } from './claims.ts'
import {
  bySeniority,
  type FamilyMeaning,
  familiesOf,
  forwardsLocalhost,
  type Here,
  hereOf,
  type MeaningConfig,
  nodePortAddressesOf,
  type Place,
  podSourceOf,
  portKey,
  promisesOf,
} from './meaning.ts'
import { addressOf } from './packet-class.ts'

export function meaningOf(snapshot: Snapshot, config: MeaningConfig): readonly FamilyMeaning[] {
  const draft = new MeaningDraft(snapshot, config)
  for (const service of draft.services) draft.add(service)
  return draft.settled()
}

/** Computes what all Services mean together, in each family: add all `services` in their order, and settle. */
export class MeaningDraft {
  readonly services: readonly Service[]
  readonly #here: Here
  readonly #families: readonly FamilyMeanings[]

  constructor(snapshot: Snapshot, config: MeaningConfig) {
    const all = [...snapshot.services.values()]
    this.#here = hereOf(snapshot, config, new Set(all.flatMap(({ clusterIps }) => clusterIps)))
    this.#families = FAMILIES.map(family => new FamilyMeanings(this.#here, family))
    this.services = all
      .filter(({ type, proxyName }) => type !== 'ExternalName' && proxyName === config.serviceProxyName)
      .sort(bySeniority)
  }

  add(service: Service): void {
    const own = familiesOf(service)
    for (const each of this.#families) if (own.includes(each.family)) each.add(this.#here, service)
  }

  settled(): readonly FamilyMeaning[] {
    for (const family of this.#families) family.settle()
    return this.#families
  }
}

/** The meaning of one family. Services are added in the order of their age, and what is taken stays taken. */
class FamilyMeanings implements FamilyMeaning {
  readonly family: Family
  readonly podSource: FamilyMeaning['podSource']
  readonly masqueradeAll: boolean
  readonly promises: FamilyMeaning['promises']
  readonly nodePortAddresses: readonly Ip[] | undefined
  readonly forwardsLocalhost: boolean
  readonly serviceCidrs: FamilyMeaning['serviceCidrs']
  readonly nodeIps: ReadonlySet<Ip>
  readonly localIps: ReadonlySet<Ip>
  readonly places: Place[] = []
  readonly nodePorts: Place[] = []
  readonly healthCheckPorts: number[] = []
  readonly clusterIps = new Set<Ip>()
  readonly localEndpoints = new Set<Ip>()
  readonly #addresses = new Map<string, Ip[]>()
  readonly #claims: Claims[] = []
  /** The claims that won, by placeKey. */
  readonly #winners = new Map<string, PlaceClaim>()
  /** The numbers of node ports that are taken, by portKey. */
  readonly #takenPorts = new Set<string>()

  constructor(here: Here, family: Family) {
    const { config, snapshot, ips } = here
    this.promises = promisesOf(config)
    const isClosed = config.serviceProxyName === undefined && this.promises.closesUnused
    const cidrs = isClosed ? snapshot.serviceCidrs.values().flat() : []
    this.family = family
    this.podSource = podSourceOf(here, family)
    this.masqueradeAll = config.masqueradeAll
    this.nodePortAddresses = nodePortAddressesOf(here, family)
    this.forwardsLocalhost = forwardsLocalhost(config, family)
    this.serviceCidrs = mergeCidrs(cidrs.filter(({ ip }) => familyOf(ip) === family))
    this.nodeIps = new Set([...ips, ...snapshot.localIps])
    this.localIps = new Set(snapshot.localIps)
  }

  addressesAt(place: Pick<Place, 'protocol' | 'port'>): Iterable<Ip> {
    return this.#addresses.get(portKey(place)) ?? []
  }

  /** Adds the claims of a Service that no older one has. */
  add(here: Here, service: Service): void {
    const claims = new ClaimsDraft({ here, family: this.family, podSource: this.podSource }).claimsOf(service)
    const { clusterIp, places, nodePorts } = claims
    this.#claims.push(claims)
    if (clusterIp !== undefined) {
      this.clusterIps.add(clusterIp)
      if (service.healthCheckNodePort !== 0) this.healthCheckPorts.push(service.healthCheckNodePort)
    }
    for (const [key, claim] of places) {
      const winner = this.#winners.get(key)
      // Only older Services have taken node ports at this point.
      const isHidden = claim.yields && this.#takenPorts.has(key.slice(0, key.indexOf(' ')))
      if (isHidden || (winner !== undefined && (claim.isHealthCheck || !winner.isHealthCheck))) continue
      this.#winners.set(key, claim)
    }
    for (const [key, place] of nodePorts) {
      if (this.#takenPorts.has(key)) continue
      this.#takenPorts.add(key)
      if (place !== undefined) this.nodePorts.push(place)
    }
  }

  /** Lists the places and the endpoints on this node, after the last Service. */
  settle(): void {
    for (const { place } of this.#winners.values()) {
      if (place?.ip === undefined) continue
      this.places.push(place)
      append(this.#addresses, portKey(place), place.ip)
    }
    const onNode = new Set(this.#claims.flatMap(claims => [...claims.onNode]))
    const { masqueradesItself } = this.promises
    for (const claims of onNode.size === 0 && !masqueradesItself ? [] : this.#claims) {
      for (const endpoint of endpointsOf(claims))
        if (masqueradesItself || onNode.has(endpoint)) this.localEndpoints.add(addressOf(endpoint))
    }
  }
}

function endpointsOf({ places, nodePorts }: Claims): ReadonlySet<Octets> {
  const lists = new Set<readonly Octets[]>()
  for (const place of [...[...places.values()].map(its => its.place), ...nodePorts.values()])
    for (const fate of place === undefined ? [] : [place.pod, place.node, place.other])
      if (fate.kind === 'endpoints') lists.add(fate.endpoints)
  return new Set([...lists].flat())
}
