import { append } from '../base/collections.ts'
import { assert } from '../base/errors.ts'
import type { Ip } from '../base/ip.ts'
import { difference, everything, intersection, point, type Region } from '../base/region.ts'
import { type Hook, LOCAL, loopback, regionOfIps } from '../kernel/evaluate/values.ts'
import { BehindSpace } from './atoms-behind.ts'
import { type AtPort, classOf, Destinations, grouped, untaken } from './destinations.ts'
import { DROP, type FamilyMeaning, type Fate, PASS, type Place, REJECT } from './meaning.ts'
import type { PacketClass } from './packet-class.ts'
import type { Elsewhere } from './reads.ts'
import { NOT_LOCAL, regionOf, Sources, TYPES } from './sources.ts'

export const HOOKS: readonly Hook[] = ['prerouting', 'output']

/**
 * Divides all packets of a family into classes of one fate. The evaluator divides them further where the kernel's
 * state tells packets of a class apart.
 */
export function* classesOf(
  meaning: FamilyMeaning,
  space: Atoms = spaceOf(meaning),
): Generator<PacketClass, void, undefined> {
  // What the evaluator knows of a place it keeps for the next class.
  for (const place of meaning.places) for (const hook of HOOKS) yield* space.atPlace(hook, place)
  for (const place of meaning.nodePorts) for (const hook of HOOKS) yield* space.atNodePort(hook, place)
  for (const hook of HOOKS) yield* space.elsewhere(hook)
}

export type Atoms = Pick<Space, 'atPlace' | 'atNodePort' | 'elsewhere' | 'elsewhereAt'>

export function spaceOf(meaning: FamilyMeaning): Atoms {
  return meaning.promises.refusesBehind ? new BehindSpace(meaning) : new Space(meaning)
}

/** The packets of a family, divided by what they are sent to. */
class Space {
  readonly #meaning: FamilyMeaning
  readonly #length: number
  readonly #addresses: Region
  readonly #sources: Sources
  readonly #destinations = new Destinations()
  readonly #serviceCidrs: Region
  readonly #nodeAddresses: Region | undefined
  #clusterIps: Region | undefined

  constructor(meaning: FamilyMeaning) {
    const { family, serviceCidrs, nodePortAddresses } = meaning
    this.#meaning = meaning
    this.#length = family === 'IPv4' ? 4 : 16
    this.#addresses = everything(this.#length)
    this.#sources = new Sources(meaning)
    this.#serviceCidrs = regionOf(serviceCidrs)
    this.#nodeAddresses = nodePortAddresses && regionOfIps(nodePortAddresses)
  }

  *atPlace(hook: Hook, place: Place): Generator<PacketClass, void, undefined> {
    const { ip } = place
    assert(ip !== undefined, 'a place has an address')
    const to = this.#destinations.at(point(ip), place)
    for (const from of this.#sources.at(hook, place)) yield classOf(hook, place, to, from)
  }

  /** Places hide node ports of the same number. */
  *atNodePort(hook: Hook, place: Place): Generator<PacketClass, void, undefined> {
    const { protocol } = place
    const hidden = regionOfIps(this.#meaning.addressesAt(place))
    const isEverywhere = this.#nodeAddresses === undefined
    const all = this.#nodeAddresses ?? difference(this.#addresses, loopback(this.#length))
    const served = difference(all, hidden)
    const relayed = difference(loopback(this.#length), hidden)
    if (this.#meaning.relaysLocalhost && protocol === 'SCTP' && relayed.length > 0) {
      yield classOf(hook, place, this.#destinations.at(relayed, place), this.#sources.anyone(hook, REJECT))
    }
    const clusterIps = this.#meaning.promises.bindsAddresses ? [] : this.#clusterIpsAmong(served)
    for (const [region, its] of [
      [difference(served, clusterIps), place],
      [intersection(served, clusterIps), this.#alsoClusterIp(place)],
    ] as const) {
      if (region.length === 0) continue
      const to = { ...this.#destinations.at(region, place), destinationType: isEverywhere ? LOCAL : TYPES }
      for (const from of this.#sources.at(hook, its)) yield classOf(hook, place, to, from)
    }
  }

  /** Gives those among a few addresses; all where every address serves node ports. */
  #clusterIpsAmong(served: Region): Region {
    const { nodePortAddresses, clusterIps } = this.#meaning
    if (nodePortAddresses !== undefined)
      return regionOfIps(nodePortAddresses.filter(ip => this.#meaning.isClusterIp(ip)))
    if (served.length === 0) return []
    this.#clusterIps ??= regionOfIps(clusterIps)
    return this.#clusterIps
  }

  /** At a ClusterIP, clients outside the cluster are masqueraded whatever serves them. */
  #alsoClusterIp(place: Place): Place {
    const { podSource, masqueradeAll } = this.#meaning
    const asked = (fate: Fate): Fate => (fate.kind === 'endpoints' ? { ...fate, masquerade: true } : fate)
    return {
      ...place,
      pod: masqueradeAll ? asked(place.pod) : place.pod,
      node: masqueradeAll || podSource !== undefined ? asked(place.node) : place.node,
      other: masqueradeAll || podSource !== undefined ? asked(place.other) : place.other,
    }
  }

  /** Everything that is sent to no service port. */
  *elsewhere(hook: Hook): Generator<PacketClass, void, undefined> {
    yield* this.#unserved(hook, this.#groupsAtLocalhost())
  }

  /** The same at one address, or at one port of it, where a list has the addresses that serve node ports. */
  *elsewhereAt(
    hook: Hook,
    { ip, at }: Elsewhere,
    served: readonly Pick<Place, 'ip' | 'protocol' | 'port'>[],
  ): Generator<PacketClass, void, undefined> {
    assert(ip !== undefined, 'packets to all addresses are followed whole')
    const group = {
      addresses: point(ip),
      closed: this.#whyClosed(ip, served.filter(its => its.ip !== undefined).length),
      ports: served,
      type: TYPES,
    }
    yield* this.#unserved(hook, [group], at)
  }

  *#unserved(hook: Hook, groups: Iterable<Group>, at?: AtPort): Generator<PacketClass, void, undefined> {
    for (const { addresses, ports, closed, type } of groups) {
      for (const [region, isReserved] of [
        [difference(addresses, this.#serviceCidrs), false],
        [intersection(addresses, this.#serviceCidrs), true],
      ] as const) {
        if (region.length === 0) continue
        const fate: Fate = closed !== undefined ? REJECT : isReserved ? DROP : PASS
        const name = closed ?? (isReserved ? 'an unused address of a ServiceCIDR' : 'no Service')
        const from = this.#sources.anyone(hook, fate)
        for (const its of untaken(ports, at))
          yield classOf(hook, name, { destination: region, destinationType: type, ...its }, from)
      }
    }
  }

  /** The relay has no SCTP: its node ports are taken at loopback addresses too. */
  *#groupsAtLocalhost(): Generator<Group, void, undefined> {
    const { relaysLocalhost, nodePorts } = this.#meaning
    const sctp = [...nodePorts].filter(({ protocol }) => protocol === 'SCTP')
    const inside = loopback(this.#length)
    for (const group of this.#groups()) {
      if (!relaysLocalhost || sctp.length === 0) {
        yield group
        continue
      }
      const { addresses, ports } = group
      yield { ...group, addresses: difference(addresses, inside) }
      yield { ...group, addresses: intersection(addresses, inside), ports: [...ports, ...sctp] }
    }
  }

  /** Says what packets to an address are sent to whose ports that no Service has are rejected. */
  #whyClosed(ip: Ip, places: number): string | undefined {
    const { promises, localIps } = this.#meaning
    const isClusterIp = this.#meaning.isClusterIp(ip)
    if (promises.bindsAddresses && localIps.has(ip)) return undefined
    if (isClusterIp) return 'another port of a ClusterIP'
    return promises.bindsAddresses && places > 0 ? 'another port of an address of a Service' : undefined
  }

  /** Addresses with the same ports, together. */
  *#groups(): Generator<Group, void, undefined> {
    const { places, clusterIps, nodePortAddresses } = this.#meaning
    const nodePorts = [...this.#meaning.nodePorts]
    const byAddress = new Map<Ip, AtPort[]>()
    for (const ip of [...clusterIps, ...(nodePortAddresses ?? [])]) byAddress.set(ip, [])
    for (const place of places) if (place.ip !== undefined) append(byAddress, place.ip, place)
    const told = (ip: Ip, { length }: readonly AtPort[]) =>
      `${this.#whyClosed(ip, length)} ${nodePortAddresses?.includes(ip) === true}`
    for (const { addresses, ports } of grouped(this.#addresses, byAddress, told)) {
      const first = addresses[0]?.from ?? ''
      const group = { addresses, ports, closed: this.#whyClosed(first, ports.length) }
      const withNodePorts = [...ports, ...nodePorts]
      if (nodePortAddresses !== undefined) {
        yield { ...group, ports: nodePortAddresses.includes(first) ? withNodePorts : ports, type: TYPES }
        continue
      }
      const inside = loopback(this.#length)
      yield { ...group, type: NOT_LOCAL }
      yield { ...group, addresses: difference(addresses, inside), ports: withNodePorts, type: LOCAL }
      yield { ...group, addresses: intersection(addresses, inside), type: LOCAL }
    }
  }
}

interface Group {
  readonly addresses: Region
  /** What packets to other ports are sent to, where they are rejected. */
  readonly closed: string | undefined
  readonly ports: readonly AtPort[]
  readonly type: Region
}
