import { assert } from '../base/errors.ts'
import type { Cidr, Ip } from '../base/ip.ts'
import { type Octets, u16be, u32host } from '../base/octets.ts'
import { difference, everything, intersection, point, prefix, type Region, union } from '../base/region.ts'
import { RTN_LOCAL } from '../kernel/nft/constants.ts'
import type { Protocol } from '../model/service.ts'
import { DROP, type FamilyMeaning, type Fate, PASS, type Place, REJECT } from './meaning.ts'
import {
  addressOf,
  type Box,
  type Hook,
  isSame,
  NUMBERS,
  type PacketClass,
  PROTOCOLS,
} from './packet-class.ts'

export const HOOKS: readonly Hook[] = ['prerouting', 'output']
const LOCAL = point(u32host(RTN_LOCAL))
const PORTS = everything(2)
const TYPES = everything(4)
const NOT_LOCAL = difference(TYPES, LOCAL)

/**
 * Divides all packets of a family into classes of one fate. The evaluator divides them further where the kernel's
 * state tells packets of a class apart.
 */
export function* classesOf(
  meaning: FamilyMeaning,
  space = new Space(meaning),
): Generator<PacketClass, void, undefined> {
  // What the evaluator knows of a place it keeps for the next class.
  for (const place of meaning.places) for (const hook of HOOKS) yield* space.atPlace(hook, place)
  for (const place of meaning.nodePorts) for (const hook of HOOKS) yield* space.atNodePort(hook, place)
  for (const hook of HOOKS) yield* space.elsewhere(hook)
}

interface Origin {
  readonly source: Region
  readonly interface: Region
}

interface Source extends Origin {
  readonly sourceType: Region
  readonly fate: Fate
}

/** The packets of a family, divided by what they are sent to. */
export class Space {
  readonly #meaning: FamilyMeaning
  readonly #length: number
  readonly #addresses: Region
  readonly #pods: Region
  readonly #others: Region
  readonly #serviceCidrs: Region
  readonly #nodeAddresses: Region | undefined
  #clusterIps: Region | undefined

  constructor(meaning: FamilyMeaning) {
    const { family, podSource, serviceCidrs, nodePortAddresses } = meaning
    this.#meaning = meaning
    this.#length = family === 'IPv4' ? 4 : 16
    this.#addresses = everything(this.#length)
    this.#pods = podSource?.kind === 'cidr' ? regionOf([podSource.cidr]) : []
    this.#others = difference(this.#addresses, this.#pods)
    this.#serviceCidrs = regionOf(serviceCidrs)
    this.#nodeAddresses = nodePortAddresses && regionOfIps(nodePortAddresses)
  }

  *atPlace(hook: Hook, place: Place): Generator<PacketClass, void, undefined> {
    const { ip } = place
    assert(ip !== undefined, 'a place has an address')
    const to = this.#toPlace(point(ip), place)
    for (const from of this.#sources(hook, place)) yield this.#class(hook, place, to, from)
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
      yield this.#class(hook, place, this.#toPlace(relayed, place), this.#anyone(hook, REJECT))
    }
    const clusterIps = this.#clusterIpsAmong(served)
    for (const [region, its] of [
      [difference(served, clusterIps), place],
      [intersection(served, clusterIps), this.#alsoClusterIp(place)],
    ] as const) {
      if (region.length === 0) continue
      const to = { ...this.#toPlace(region, place), destinationType: isEverywhere ? LOCAL : TYPES }
      for (const from of this.#sources(hook, its)) yield this.#class(hook, place, to, from)
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
    { ip, at }: { readonly ip: Ip; readonly at: Pick<Place, 'protocol' | 'port'> | undefined },
    ports: readonly Pick<Place, 'protocol' | 'port'>[],
  ): Generator<PacketClass, void, undefined> {
    const group = {
      addresses: point(ip),
      isClusterIp: this.#meaning.isClusterIp(ip),
      ports: portsOf(ports.map(({ protocol, port }) => `${protocol} ${port}`)),
      type: TYPES,
    }
    yield* this.#unserved(hook, [group], at)
  }

  *#unserved(
    hook: Hook,
    groups: Iterable<Group>,
    at?: Pick<Place, 'protocol' | 'port'>,
  ): Generator<PacketClass, void, undefined> {
    const among = at === undefined ? PORTS : point(u16be(at.port))
    for (const { addresses, ports, isClusterIp, type } of groups) {
      for (const [region, isReserved] of [
        [difference(addresses, this.#serviceCidrs), false],
        [intersection(addresses, this.#serviceCidrs), true],
      ] as const) {
        if (region.length === 0) continue
        const fate = isClusterIp ? REJECT : isReserved ? DROP : PASS
        const name = isClusterIp
          ? 'another port of a ClusterIP'
          : isReserved
            ? 'an unused address of a ServiceCIDR'
            : 'no Service'
        for (const [protocol, numbers] of protocolRegions()) {
          if (at !== undefined && protocol !== at.protocol) continue
          const taken = protocol === undefined ? [] : (ports.get(protocol) ?? [])
          const destinationPort = difference(among, union(taken.map(number => prefix(u16be(number), 16))))
          if (destinationPort.length === 0) continue
          const to = {
            destination: region,
            protocol: numbers,
            destinationPort,
            destinationType: type,
          }
          yield this.#class(hook, name, to, this.#anyone(hook, fate))
        }
      }
    }
  }

  /** The relay has no SCTP: its node ports are taken at loopback addresses too. */
  *#groupsAtLocalhost(): Generator<Group, void, undefined> {
    const { relaysLocalhost, nodePorts } = this.#meaning
    const sctp = [...nodePorts].flatMap(({ protocol, port }) => (protocol === 'SCTP' ? [port] : []))
    const inside = loopback(this.#length)
    for (const group of this.#groups()) {
      if (!relaysLocalhost || sctp.length === 0) {
        yield group
        continue
      }
      const { addresses, ports } = group
      yield { ...group, addresses: difference(addresses, inside) }
      const taken = new Map(ports).set('SCTP', [...(ports.get('SCTP') ?? []), ...sctp])
      yield { ...group, addresses: intersection(addresses, inside), ports: taken }
    }
  }

  /** Addresses with the same ports, together. */
  *#groups(): Generator<Group, void, undefined> {
    const { places, clusterIps, nodePortAddresses, nodePorts } = this.#meaning
    const byAddress = new Map<Ip, string[]>()
    for (const ip of [...clusterIps, ...(nodePortAddresses ?? [])]) byAddress.set(ip, [])
    for (const { ip, protocol, port } of places)
      if (ip !== undefined) push(byAddress, ip, `${protocol} ${port}`)
    const groups = new Map<string, { readonly ips: Ip[]; readonly places: readonly string[] }>()
    for (const [ip, its] of byAddress) {
      const served = nodePortAddresses?.includes(ip) === true
      const key = `${this.#meaning.isClusterIp(ip)} ${served} ${its.sort().join()}`
      const group = groups.get(key)
      if (group === undefined) groups.set(key, { ips: [ip], places: its })
      else group.ips.push(ip)
    }
    const nodePlaces = [...nodePorts].map(({ protocol, port }) => `${protocol} ${port}`)
    const named = regionOfIps(byAddress.keys())
    const all = [
      ...[...groups.values()].map(({ ips, places: its }) => ({ addresses: regionOfIps(ips), places: its })),
      { addresses: difference(this.#addresses, named), places: [] },
    ]
    for (const { addresses, places: its } of all) {
      const first = addresses[0]?.from ?? ''
      const isClusterIp = this.#meaning.isClusterIp(first)
      const group = { addresses, isClusterIp }
      if (nodePortAddresses !== undefined) {
        const served = nodePortAddresses.includes(first) ? nodePlaces : []
        yield { ...group, ports: portsOf([...its, ...served]), type: TYPES }
        continue
      }
      const inside = loopback(this.#length)
      yield { ...group, ports: portsOf(its), type: NOT_LOCAL }
      yield {
        ...group,
        addresses: difference(addresses, inside),
        ports: portsOf([...its, ...nodePlaces]),
        type: LOCAL,
      }
      yield { ...group, addresses: intersection(addresses, inside), ports: portsOf(its), type: LOCAL }
    }
  }

  /** Divides the sources at a place by their fates. */
  #sources(hook: Hook, place: Place): readonly Source[] {
    const { pod, node, other, allowed } = place
    const any = interfaces(hook)
    const allowedRegion = allowed === undefined ? this.#addresses : regionOf(allowed)
    const denied = allowed === undefined ? [] : difference(this.#addresses, allowedRegion)
    const sources: Source[] = []
    if (denied.length > 0) sources.push({ source: denied, sourceType: TYPES, interface: any, fate: DROP })
    if (isSame(pod, other) && isSame(node, other)) {
      this.#add({ source: allowedRegion, sourceType: TYPES, interface: any, fate: other }, sources)
      return sources
    }
    const [pods, others] = this.#partsOf(any, allowed === undefined ? undefined : allowedRegion)
    this.#add(from(pods, TYPES, pod), sources)
    if (isSame(node, other)) this.#add(from(others, TYPES, other), sources)
    else {
      this.#add(from(others, LOCAL, node), sources)
      this.#add(from(others, NOT_LOCAL, other), sources)
    }
    return sources
  }

  /** Divides clients into pods and others. */
  #partsOf(any: Region, allowed: Region | undefined): readonly [Origin, Origin] {
    if (allowed !== undefined) return this.#computeParts(any, allowed)
    const known = this.#parts.get(any) ?? this.#computeParts(any, undefined)
    this.#parts.set(any, known)
    return known
  }

  readonly #parts = new Map<Region, readonly [Origin, Origin]>()

  #computeParts(any: Region, allowed: Region | undefined): readonly [Origin, Origin] {
    const { podSource } = this.#meaning
    if (podSource?.kind === 'interface') {
      const bytes = podSource.isPrefix ? podSource.name : podSource.name.padEnd(16, '\0')
      const inside = [prefix(bytes.padEnd(16, '\0'), bytes.length * 8)]
      const source = allowed ?? this.#addresses
      return [
        { source, interface: intersection(any, inside) },
        { source, interface: difference(any, inside) },
      ]
    }
    const within = (part: Region) => (allowed === undefined ? part : intersection(allowed, part))
    return [
      { source: within(this.#pods), interface: any },
      { source: within(this.#others), interface: any },
    ]
  }

  /** Adds clients, those apart that are an endpoint on this node themselves. */
  #add(its: Source, sources: Source[]): void {
    const { fate } = its
    if (its.source.length === 0 || its.interface.length === 0) return
    const own = fate.kind === 'endpoints' && !fate.masquerade ? this.#ownOf(fate.endpoints) : []
    const met = own.length === 0 ? own : intersection(its.source, own)
    if (met.length === 0) {
      sources.push(its)
      return
    }
    for (const ip of addressesIn(met)) sources.push({ ...its, source: point(ip) })
    const source = difference(its.source, met)
    if (source.length > 0) sources.push({ ...its, source })
  }

  #lastOwn: { readonly endpoints: readonly Octets[]; readonly own: Region } = { endpoints: [], own: [] }

  /** Gives the addresses of endpoints on this node. The fates of one service port share their endpoints. */
  #ownOf(endpoints: readonly Octets[]): Region {
    const { localEndpoints } = this.#meaning
    if (localEndpoints.size === 0) return []
    if (this.#lastOwn.endpoints !== endpoints) {
      const own = regionOfIps(endpoints.map(addressOf).filter(ip => localEndpoints.has(ip)))
      this.#lastOwn = { endpoints, own }
    }
    return this.#lastOwn.own
  }

  #anyone(hook: Hook, fate: Fate): Source {
    return { source: this.#addresses, sourceType: TYPES, interface: interfaces(hook), fate }
  }

  readonly #points = new Map<string, Pick<Box, 'protocol' | 'destinationPort'>>()

  /** Many places have the same port. */
  #toPlace(destination: Region, { protocol, port }: Place): Destination {
    const key = `${protocol}${port}`
    const known = this.#points.get(key) ?? {
      protocol: point(String.fromCharCode(NUMBERS[protocol])),
      destinationPort: point(u16be(port)),
    }
    this.#points.set(key, known)
    return {
      destination,
      destinationType: TYPES,
      protocol: known.protocol,
      destinationPort: known.destinationPort,
    }
  }

  #class(hook: Hook, at: Place | string, to: Destination, from: Source): PacketClass {
    const { destination, destinationType, protocol, destinationPort } = to
    const { source, sourceType, fate } = from
    const box = {
      source,
      sourceType,
      interface: from.interface,
      destination,
      destinationType,
      protocol,
      destinationPort,
      sourcePort: PORTS,
    }
    return { hook, at, fate, box, isOurs: fate !== PASS }
  }
}

function from({ source, interface: name }: Origin, sourceType: Region, fate: Fate): Source {
  return { source, interface: name, sourceType, fate }
}

type Destination = Pick<Box, 'destination' | 'destinationType' | 'protocol' | 'destinationPort'>

interface Group {
  readonly addresses: Region
  readonly isClusterIp: boolean
  readonly ports: ReadonlyMap<Protocol, readonly number[]>
  readonly type: Region
}

const NO_INTERFACE = point('\0'.repeat(16))
const INTERFACES = everything(16)

/** A process of this node has no input interface. */
function interfaces(hook: Hook): Region {
  return hook === 'output' ? NO_INTERFACE : INTERFACES
}

function regionOf(cidrs: readonly Cidr[]): Region {
  return union(cidrs.map(({ ip, bits }) => prefix(ip, bits)))
}

function regionOfIps(ips: Iterable<Ip>): Region {
  return union([...ips].map(ip => ({ from: ip, to: ip })))
}

function loopback(length: number): Region {
  return length === 4 ? [prefix('\x7f\0\0\0', 8)] : point(`${'\0'.repeat(15)}\x01`)
}

/** Lists addresses that stand for few: endpoints on this node. */
function addressesIn(region: Region): readonly Ip[] {
  return region.flatMap(({ from, to }) => {
    const ips = [from]
    for (let rest = difference([{ from, to }], point(from)); rest[0] !== undefined; ) {
      const ip = rest[0].from
      ips.push(ip)
      rest = difference(rest, point(ip))
    }
    return ips
  })
}

function* protocolRegions(): Generator<readonly [Protocol | undefined, Region], void, undefined> {
  const known = PROTOCOLS.map(protocol => String.fromCharCode(NUMBERS[protocol]))
  for (const [index, protocol] of PROTOCOLS.entries()) yield [protocol, point(known[index] ?? '')]
  yield [undefined, difference(everything(1), union(known.map(octet => ({ from: octet, to: octet }))))]
}

function portsOf(places: readonly string[]): ReadonlyMap<Protocol, readonly number[]> {
  return new Map(
    PROTOCOLS.map(protocol => [
      protocol,
      places.flatMap(place =>
        place.startsWith(`${protocol} `) ? [Number(place.slice(protocol.length))] : [],
      ),
    ]),
  )
}

function push<K, V>(lists: Map<K, V[]>, key: K, value: V): void {
  const list = lists.get(key)
  if (list === undefined) lists.set(key, [value])
  else list.push(value)
}
