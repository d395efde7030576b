import { append } from '../base/collections.ts'
import { assert } from '../base/errors.ts'
import type { Ip } from '../base/ip.ts'
import { difference, everything, intersection, point, type Region, union } from './evaluate/region.ts'
import { type Hook, LOCAL, loopback, regionOfIps } from './evaluate/values.ts'
import { DROP, type FamilyMeaning, type Fate, PASS, type Place, portKey, REFUSE, REJECT } from './meaning.ts'
import type { PacketClass } from './packet-class.ts'
import {
  type AtPort,
  classOf,
  type Destination,
  destinationAt,
  grouped,
  NOT_LOCAL,
  regionOf,
  type Source,
  Sources,
  TYPES,
  untaken,
} from './sides.ts'

const HOOKS: readonly Hook[] = ['prerouting', 'output']

/**
 * Divides all packets of a family into classes of one fate. The evaluator divides them further where the kernel's
 * state distinguishes packets of a class.
 */
export function* classesOf(meaning: FamilyMeaning): Generator<PacketClass, void, undefined> {
  const space = meaning.promises.refusesBehind ? new BehindSpace(meaning) : new Space(meaning)
  // The evaluator keeps its results about a place for the next class.
  for (const place of meaning.places)
    for (const hook of HOOKS) for (const its of space.atPlace(hook, place)) yield its
  for (const place of meaning.nodePorts)
    for (const hook of HOOKS) for (const its of space.atNodePort(hook, place)) yield its
  for (const hook of HOOKS) for (const its of space.elsewhere(hook)) yield its
}

class Space {
  readonly #meaning: FamilyMeaning
  readonly #length: number
  readonly #addresses: Region
  readonly #sources: Sources
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

  atPlace(hook: Hook, place: Place): readonly PacketClass[] {
    const { ip } = place
    assert(ip !== undefined, 'a place has an address')
    const to = destinationAt(point(ip), place)
    return this.#sources.at(hook, place).map(from => classOf(hook, place, to, from))
  }

  /** Places hide node ports of the same number. */
  atNodePort(hook: Hook, place: Place): readonly PacketClass[] {
    const classes: PacketClass[] = []
    const { protocol } = place
    const hidden = regionOfIps(this.#meaning.addressesAt(place))
    const isEverywhere = this.#nodeAddresses === undefined
    const all = this.#nodeAddresses ?? difference(this.#addresses, loopback(this.#length))
    const served = difference(all, hidden)
    const relayed = difference(loopback(this.#length), hidden)
    if (this.#meaning.forwardsLocalhost && protocol === 'SCTP' && relayed.length > 0) {
      const to = destinationAt(relayed, place)
      classes.push(classOf(hook, place, to, this.#sources.anyone(hook, REJECT)))
    }
    const clusterIps = this.#meaning.promises.bindsAddresses ? [] : this.#clusterIpsAmong(served)
    for (const [region, its] of [
      [difference(served, clusterIps), place],
      [intersection(served, clusterIps), this.#alsoClusterIp(place)],
    ] as const) {
      if (region.length === 0) continue
      const to = { ...destinationAt(region, place), destinationType: isEverywhere ? LOCAL : TYPES }
      for (const from of this.#sources.at(hook, its)) classes.push(classOf(hook, place, to, from))
    }
    return classes
  }

  /** Gives those among a few addresses; all where every address serves node ports. */
  #clusterIpsAmong(served: Region): Region {
    const { nodePortAddresses, clusterIps } = this.#meaning
    if (nodePortAddresses !== undefined)
      return regionOfIps(nodePortAddresses.filter(ip => this.#meaning.clusterIps.has(ip)))
    if (served.length === 0) return []
    this.#clusterIps ??= regionOfIps(clusterIps)
    return this.#clusterIps
  }

  /** Clients outside the cluster are masqueraded at a ClusterIP, whatever serves them. */
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
    for (const { addresses, ports, closed, type } of this.#groupsAtLocalhost()) {
      for (const [region, isReserved] of [
        [difference(addresses, this.#serviceCidrs), false],
        [intersection(addresses, this.#serviceCidrs), true],
      ] as const) {
        if (region.length === 0) continue
        const fate: Fate = closed !== undefined ? REJECT : isReserved ? DROP : PASS
        const name = closed ?? (isReserved ? 'an unused address of a ServiceCIDR' : 'no Service')
        const from = this.#sources.anyone(hook, fate)
        for (const its of untaken(ports))
          yield classOf(hook, name, { destination: region, destinationType: type, ...its }, from)
      }
    }
  }

  /** The relay has no SCTP: its node ports are taken at loopback addresses too. */
  *#groupsAtLocalhost(): Generator<Group, void, undefined> {
    const { forwardsLocalhost, nodePorts } = this.#meaning
    const sctp = nodePorts.filter(({ protocol }) => protocol === 'SCTP')
    const inside = loopback(this.#length)
    for (const group of this.#groups()) {
      if (!forwardsLocalhost || sctp.length === 0) {
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
    const isClusterIp = this.#meaning.clusterIps.has(ip)
    if (promises.bindsAddresses && localIps.has(ip)) return undefined
    if (isClusterIp) return 'another port of a ClusterIP'
    return promises.bindsAddresses && places > 0 ? 'another port of an address of a Service' : undefined
  }

  /** Addresses with the same ports, together. */
  *#groups(): Generator<Group, void, undefined> {
    const { places, nodePorts, clusterIps, nodePortAddresses } = this.#meaning
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
  /** The name of the packets to other ports, where those are rejected. */
  readonly closed: string | undefined
  readonly ports: readonly AtPort[]
  readonly type: Region
}

/**
 * The packets of a family, divided by what they are sent to, for a mode that refuses packets behind the translation of
 * destinations. What a Service refuses stays sent to its address: a node port of the same number takes it, and chains
 * that only some packets meet refuse it.
 */
class BehindSpace {
  readonly #meaning: FamilyMeaning
  readonly #addresses: Region
  readonly #loopback: Region
  readonly #sources: Sources
  /** Addresses of node ports: all but loopback ones where nothing lists them. */
  readonly #listed: Region | undefined
  readonly #served: Region
  /** Loopback addresses to which packets from others may be dropped: kubelet drops them, too. */
  readonly #guarded: Region
  readonly #isGuarded: boolean
  readonly #nodePorts: ReadonlyMap<string, Place>

  constructor(meaning: FamilyMeaning) {
    const { family, nodePortAddresses, nodePorts, promises } = meaning
    const length = family === 'IPv4' ? 4 : 16
    this.#meaning = meaning
    this.#addresses = everything(length)
    this.#loopback = loopback(length)
    this.#sources = new Sources(meaning)
    this.#listed = nodePortAddresses && regionOfIps(nodePortAddresses)
    const answers = family === 'IPv4' && promises.answersAtLoopback
    const isAtLoopback =
      answers && (this.#listed === undefined || intersection(this.#listed, this.#loopback).length > 0)
    const withoutLoopback = difference(this.#listed ?? this.#addresses, this.#loopback)
    this.#served = isAtLoopback ? (this.#listed ?? this.#addresses) : withoutLoopback
    this.#guarded = family === 'IPv4' ? this.#loopback : []
    this.#isGuarded = isAtLoopback
    this.#nodePorts = new Map(nodePorts.map(place => [portKey(place), place]))
  }

  atPlace(hook: Hook, place: Place): readonly PacketClass[] {
    const { ip } = place
    assert(ip !== undefined, 'a place has an address')
    const to = destinationAt(point(ip), place)
    return this.#sources.at(hook, place).flatMap(from => {
      if (from.fate.kind === 'endpoints') return [classOf(hook, place, to, from)]
      return [LOCAL, NOT_LOCAL].flatMap(type =>
        this.#refused(hook, { place, ip, type }, from).map(its =>
          classOf(hook, place, { ...to, destinationType: type }, its),
        ),
      )
    })
  }

  /** Divides packets that a Service refuses at an address by what else becomes of them. */
  #refused(
    hook: Hook,
    { place, ip, type }: { readonly place: Place; readonly ip: Ip; readonly type: Region },
    from: Source,
  ): readonly Source[] {
    const own = this.#isMet(hook, place, { ip, type }) ? from.fate : PASS
    const nodePort = type === LOCAL ? this.#nodePorts.get(portKey(place)) : undefined
    if (nodePort === undefined) return [{ ...from, fate: own }]
    const isServed = intersection(this.#served, point(ip)).length > 0
    return this.#nodePortSources(hook, nodePort, isServed).flatMap(its => {
      const source = intersection(from.source, its.source)
      const sourceType = intersection(from.sourceType, its.sourceType)
      const name = intersection(from.interface, its.interface)
      const fate = its.fate.kind === 'endpoints' ? its.fate : both(own, its.fate)
      const isEmpty = source.length === 0 || sourceType.length === 0 || name.length === 0
      return isEmpty ? [] : [{ source, sourceType, interface: name, fate }]
    })
  }

  /** Tests whether packets meet the chain that refuses them. */
  #isMet(hook: Hook, { allowed }: Place, { ip, type }: { readonly ip: Ip; readonly type: Region }): boolean {
    // The chain of source ranges drops at every hook what no rule has translated.
    if (allowed !== undefined) return true
    if (this.#meaning.clusterIps.has(ip)) return hook === 'output' || type === NOT_LOCAL
    return hook === 'prerouting' || type === LOCAL
  }

  #nodePortSources(hook: Hook, place: Place, isServed: boolean): readonly Source[] {
    if (isServed) return this.#sources.at(hook, place)
    const { other } = place
    return [this.#sources.anyone(hook, other.kind === 'endpoints' ? PASS : other)]
  }

  /** Places hide node ports of the same number; what they refuse is theirs, too. */
  atNodePort(hook: Hook, place: Place): readonly PacketClass[] {
    const classes: PacketClass[] = []
    const hidden = regionOfIps(this.#meaning.addressesAt(place))
    for (const [addresses, isServed] of [
      [difference(this.#served, hidden), true],
      [difference(this.#addresses, union([...this.#served, ...hidden])), false],
    ] as const)
      for (const from of this.#nodePortSources(hook, place, isServed))
        classes.push(
          ...this.#guardedClasses(hook, place, {
            to: { ...destinationAt(addresses, place), destinationType: LOCAL },
            from,
          }),
        )
    if (this.#listed === undefined) return classes
    const addresses = difference(this.#served, hidden)
    for (const from of this.#sources.at(hook, place)) {
      const fate = from.fate.kind === 'endpoints' ? from.fate : PASS
      const to = { ...destinationAt(addresses, place), destinationType: NOT_LOCAL }
      classes.push(...this.#guardedClasses(hook, place, { to, from: { ...from, fate } }))
    }
    return classes
  }

  /** Packets to loopback addresses that nothing translates come from loopback addresses. */
  #guardedClasses(
    hook: Hook,
    at: Place | string,
    { to, from }: { readonly to: Destination; readonly from: Source },
  ): readonly PacketClass[] {
    const { kind } = from.fate
    const isRefusal = kind === 'reject' || kind === 'drop' || kind === 'refuse'
    const mayDrop = isRefusal || (this.#isGuarded && kind !== 'endpoints')
    const isGuarded = mayDrop && (hook === 'output' || to.destinationType === LOCAL)
    const inside = isGuarded ? intersection(to.destination, this.#guarded) : []
    const outside = inside.length === 0 ? to.destination : difference(to.destination, inside)
    const classes = outside.length === 0 ? [] : [classOf(hook, at, { ...to, destination: outside }, from)]
    if (inside.length === 0) return classes
    const near = intersection(from.source, this.#loopback)
    const far = difference(from.source, this.#loopback)
    const guarded = { ...to, destination: inside }
    if (near.length > 0) classes.push(classOf(hook, at, guarded, { ...from, source: near }))
    if (far.length > 0)
      classes.push(classOf(hook, at, guarded, { ...from, source: far, fate: both(from.fate, DROP) }))
    return classes
  }

  /** Everything that is sent to no service port. */
  *elsewhere(hook: Hook): Generator<PacketClass, void, undefined> {
    const from = this.#sources.anyone(hook, PASS)
    for (const { addresses, ports, isListed } of this.#groups())
      for (const type of [LOCAL, NOT_LOCAL]) {
        const taken = type === LOCAL || isListed ? [...ports, ...this.#nodePorts.values()] : ports
        for (const its of untaken(taken)) {
          const to = { destination: addresses, destinationType: type, ...its }
          for (const each of this.#guardedClasses(hook, 'no Service', { to, from })) yield each
        }
      }
  }

  /** Addresses with the same ports, together. */
  #groups(): readonly ListedGroup[] {
    const byAddress = new Map<Ip, AtPort[]>()
    for (const place of this.#meaning.places) if (place.ip !== undefined) append(byAddress, place.ip, place)
    // All node ports are taken at the addresses of the list, whatever their type.
    const listed = this.#listed === undefined ? [] : this.#served
    return grouped(this.#addresses, byAddress)
      .flatMap(({ addresses, ports }) => [
        { addresses: intersection(addresses, listed), ports, isListed: true },
        { addresses: difference(addresses, listed), ports, isListed: false },
      ])
      .filter(({ addresses }) => addresses.length > 0)
  }
}

interface ListedGroup {
  readonly addresses: Region
  readonly ports: readonly AtPort[]
  /** Node ports are served whatever type the addresses have. */
  readonly isListed: boolean
}

function both(a: Fate, b: Fate): Fate {
  if (a === PASS || a.kind === b.kind) return b
  return b === PASS ? a : REFUSE
}
