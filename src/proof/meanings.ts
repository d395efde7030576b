import { finish, Pauses, type Steps } from '../base/clock.ts'
import { PersistentMap } from '../base/collections.ts'
import { FAMILIES, type Family, type Ip } from '../base/ip.ts'
import type { Service, ServiceKey } from '../model/service.ts'
import type { Snapshot } from '../model/snapshot.ts'
import { count, FamilyMeanings, forEach, Lists, type TouchedMeaning } from './family-meanings.ts'
import {
  API_SERVICE,
  bySeniority,
  type FamilyMeaning,
  familiesOf,
  type Here,
  hereOf,
  type MeaningConfig,
} from './meaning.ts'

export function meaningOf(snapshot: Snapshot, config: MeaningConfig): readonly FamilyMeaning[] {
  return finish(Meanings.of(snapshot, config, { follows: false })).families
}

/** What all Services mean, kept while they change: a change costs what it touches. */
export class Meanings {
  readonly families: readonly FamilyMeanings[]
  readonly #config: MeaningConfig
  /** How many Services have each address as a ClusterIP. */
  readonly #clusterIps = new Map<Ip, number>()
  /** Services with an external or load-balancer address. */
  readonly #byExternal = new Lists<Ip, ServiceKey>()
  #snapshot: Snapshot
  #here: Here

  /** With `follows`, it can change(), and keeps what that needs. */
  static *of(
    snapshot: Snapshot,
    config: MeaningConfig,
    { follows }: { readonly follows: boolean },
  ): Steps<Meanings> {
    const meanings = new Meanings(snapshot, config, follows)
    yield* meanings.#fill()
    return meanings
  }

  private constructor(snapshot: Snapshot, config: MeaningConfig, follows: boolean) {
    this.#config = config
    this.#snapshot = snapshot
    const here = hereOf(snapshot, config, this.#clusterIps)
    this.#here = here
    this.families = FAMILIES.map(family => new FamilyMeanings(here, family, follows))
  }

  *#fill(): Steps<void> {
    const pauses = new Pauses()
    const services = this.#snapshot.services.values()
    for (const service of services) {
      this.#register(service, 1)
      if (pauses.due(1 / 8)) yield
    }
    // The oldest first: few claims are contested, and places keep this order.
    for (const service of services.filter(its => this.#means(its)).sort(bySeniority)) {
      for (const family of familiesOf(service)) this.#familyOf(family)?.put(this.#here, service)
      if (pauses.due(4)) yield
    }
    for (const family of this.families) yield* family.settleFirst()
  }

  /** Gives what differs for every Service; undefined where only some Services differ. */
  whyWhole(to: Snapshot): string | undefined {
    const from = this.#snapshot
    if (from.node !== to.node) return 'the Node changed'
    if (from.localIps !== to.localIps) return 'the addresses of this machine changed'
    if (from.serviceCidrs !== to.serviceCidrs) return 'the ServiceCIDRs changed'
    const isSameApi =
      from.apiEndpoints === to.apiEndpoints && from.slices.get(API_SERVICE) === to.slices.get(API_SERVICE)
    return isSameApi ? undefined : 'the addresses of the API server changed'
  }

  /** Follows the Services to another snapshot, for which whyWhole() gives no reason. */
  *change(to: Snapshot): Steps<ReadonlyMap<Family, TouchedMeaning>> {
    const from = this.#snapshot
    const ofServices = PersistentMap.changes(from.services, to.services)
    const keys = new Set([
      ...ofServices,
      ...PersistentMap.changes(from.slices, to.slices),
      ...PersistentMap.changes(from.listeners, to.listeners),
    ])
    const wereClusterIps = new Map<Ip, boolean>()
    for (const key of ofServices)
      for (const service of [from.services.get(key), to.services.get(key)])
        for (const ip of service?.clusterIps ?? []) wereClusterIps.set(ip, this.#clusterIps.has(ip))
    for (const key of ofServices) {
      const [before, after] = [from.services.get(key), to.services.get(key)]
      if (before !== undefined) this.#register(before, -1)
      if (after !== undefined) this.#register(after, 1)
    }
    // An external address that is a ClusterIP is not served.
    for (const [ip, was] of wereClusterIps)
      if (was !== this.#clusterIps.has(ip)) for (const key of this.#byExternal.of(ip)) keys.add(key)
    this.#snapshot = to
    this.#here = { ...this.#here, snapshot: to }
    yield* forEach(keys, key => this.#replace(from.services.get(key), to.services.get(key)), 8)
    const touched = new Map<Family, TouchedMeaning>()
    for (const family of this.families) touched.set(family.family, yield* family.settle())
    return touched
  }

  #replace(before: Service | undefined, after: Service | undefined): void {
    const key = after?.key ?? before?.key
    if (key === undefined) return
    const families = after === undefined || !this.#means(after) ? [] : familiesOf(after)
    for (const each of this.families) {
      each.remove(key)
      if (after !== undefined && families.includes(each.family)) each.put(this.#here, after)
    }
  }

  #familyOf(family: Family): FamilyMeanings | undefined {
    return this.families.find(its => its.family === family)
  }

  #means({ type, proxyName }: Service): boolean {
    return type !== 'ExternalName' && proxyName === this.#config.serviceProxyName
  }

  #register(service: Service, by: 1 | -1): void {
    const { key, clusterIps, externalIps, loadBalancerIps } = service
    for (const ip of clusterIps) count(this.#clusterIps, ip, by)
    for (const ip of [...externalIps, ...loadBalancerIps]) this.#byExternal.change(ip, key, by)
  }
}
