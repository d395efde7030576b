import { assert } from '../base/errors.ts'
import { type Cidr, formatIp, formatIpPort, type Ip } from '../base/ip.ts'
import { type Octets, u16be, u32host } from '../base/octets.ts'
import {
  difference,
  everything,
  intersection,
  onlyValue,
  point,
  prefix,
  type Region,
  union,
} from '../base/region.ts'
import { RTN_LOCAL } from '../kernel/nft/constants.ts'
import type { Field } from '../kernel/nft/trace-machine.ts'
import type { Protocol } from '../model/service.ts'
import { DROP, type FamilyMeaning, type Fate, PASS, type Place, REJECT } from './meaning.ts'

/** The values of each field of the packets of a class. */
export type Box = Readonly<Record<Field, Region>>
export type Hook = 'prerouting' | 'output'

/** Packets that must all meet the same fate. */
export interface PacketClass {
  readonly hook: Hook
  readonly box: Box
  readonly fate: Fate
  /** What the packets are sent to, for people: a service port, or no Service. */
  readonly name: string
  /** They are sent to a Service, or to an address that only Services have. */
  readonly isOurs: boolean
}

export const HOOKS: readonly Hook[] = ['prerouting', 'output']
const NUMBERS: Readonly<Record<Protocol, number>> = { TCP: 6, UDP: 17, SCTP: 132 }
const PROTOCOLS: readonly Protocol[] = ['TCP', 'UDP', 'SCTP']
const LOCAL = point(u32host(RTN_LOCAL))
const PORTS = everything(2)

/**
 * Divides all packets of a family into classes of one fate. The evaluator divides them further where the kernel's
 * state tells packets of a class apart.
 */
export function* classesOf(meaning: FamilyMeaning): Generator<PacketClass, void, undefined> {
  const space = new Space(meaning)
  for (const hook of HOOKS) {
    for (const place of meaning.places) yield* space.atPlace(hook, place)
    for (const place of meaning.nodePorts) yield* space.atNodePort(hook, place)
    yield* space.elsewhere(hook)
  }
}

interface Source {
  readonly source: Region
  readonly sourceType: Region
  readonly interface: Region
  readonly fate: Fate
}

class Space {
  readonly #meaning: FamilyMeaning
  readonly #length: number
  readonly #addresses: Region
  readonly #pods: Region
  readonly #others: Region
  readonly #clusterIps: Region
  readonly #serviceCidrs: Region
  readonly #nodeAddresses: Region | undefined
  /** Addresses of places by protocol and port. */
  readonly #byPort = new Map<string, Ip[]>()

  constructor(meaning: FamilyMeaning) {
    const { family, podSource, clusterIps, serviceCidrs, nodePortAddresses, places } = meaning
    this.#meaning = meaning
    this.#length = family === 'IPv4' ? 4 : 16
    this.#addresses = everything(this.#length)
    this.#pods = podSource?.kind === 'cidr' ? regionOf([podSource.cidr]) : []
    this.#others = difference(this.#addresses, this.#pods)
    this.#clusterIps = regionOfIps(clusterIps)
    this.#serviceCidrs = regionOf(serviceCidrs)
    this.#nodeAddresses = nodePortAddresses && regionOfIps(nodePortAddresses)
    for (const { ip, protocol, port } of places)
      if (ip !== undefined) push(this.#byPort, `${protocol}${port}`, ip)
  }

  *atPlace(hook: Hook, place: Place): Generator<PacketClass, void, undefined> {
    const { ip, protocol, port, name } = place
    assert(ip !== undefined, 'a place has an address')
    const at = `${name} at ${formatIpPort(ip, port)}/${protocol}`
    const to = this.#to(point(ip), { protocol: NUMBERS[protocol], port })
    for (const from of this.#sources(hook, place)) yield this.#class(hook, at, { ...to, ...from })
  }

  /** Places hide node ports of the same number. */
  *atNodePort(hook: Hook, place: Place): Generator<PacketClass, void, undefined> {
    const { protocol, port, name } = place
    const hidden = regionOfIps(this.#byPort.get(`${protocol}${port}`) ?? [])
    const isEverywhere = this.#nodeAddresses === undefined
    const all = this.#nodeAddresses ?? difference(this.#addresses, loopback(this.#length))
    const served = difference(all, hidden)
    const at = `${name} at node port ${port}/${protocol}`
    const relayed = difference(loopback(this.#length), hidden)
    if (this.#meaning.relaysLocalhost && protocol === 'SCTP' && relayed.length > 0) {
      const to = this.#to(relayed, { protocol: NUMBERS.SCTP, port })
      yield this.#class(hook, at, { ...to, ...this.#anyone(hook), fate: REJECT })
    }
    for (const [region, its] of [
      [difference(served, this.#clusterIps), place],
      [intersection(served, this.#clusterIps), this.#alsoClusterIp(place)],
    ] as const) {
      if (region.length === 0) continue
      const to = this.#to(region, { protocol: NUMBERS[protocol], port })
      for (const from of this.#sources(hook, its))
        yield this.#class(hook, at, { ...to, ...(isEverywhere && { destinationType: LOCAL }), ...from })
    }
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
    for (const { addresses, ports, isClusterIp, type } of this.#groupsAtLocalhost()) {
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
        const from = { ...this.#anyone(hook), fate }
        for (const [protocol, numbers] of protocolRegions()) {
          const taken = protocol === undefined ? [] : (ports.get(protocol) ?? [])
          const destinationPort = difference(PORTS, union(taken.map(number => prefix(u16be(number), 16))))
          if (destinationPort.length === 0) continue
          const to = {
            ...this.#to(region, undefined),
            protocol: numbers,
            destinationPort,
            destinationType: type,
          }
          yield this.#class(hook, name, { ...to, ...from })
        }
      }
    }
  }

  /** The relay has no SCTP: its node ports are taken at loopback addresses too. */
  *#groupsAtLocalhost(): Generator<Group, void, undefined> {
    const { relaysLocalhost, nodePorts } = this.#meaning
    const sctp = nodePorts.flatMap(({ protocol, port }) => (protocol === 'SCTP' ? [port] : []))
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
      const key = `${clusterIps.has(ip)} ${served} ${its.sort().join()}`
      const group = groups.get(key)
      if (group === undefined) groups.set(key, { ips: [ip], places: its })
      else group.ips.push(ip)
    }
    const nodePlaces = nodePorts.map(({ protocol, port }) => `${protocol} ${port}`)
    const named = regionOfIps(byAddress.keys())
    const all = [
      ...[...groups.values()].map(({ ips, places: its }) => ({ addresses: regionOfIps(ips), places: its })),
      { addresses: difference(this.#addresses, named), places: [] },
    ]
    for (const { addresses, places: its } of all) {
      const first = addresses[0]?.from ?? ''
      const isClusterIp = clusterIps.has(first)
      const group = { addresses, isClusterIp }
      if (nodePortAddresses !== undefined) {
        const served = nodePortAddresses.includes(first) ? nodePlaces : []
        yield { ...group, ports: portsOf([...its, ...served]), type: everything(4) }
        continue
      }
      const inside = loopback(this.#length)
      const type = difference(everything(4), LOCAL)
      yield { ...group, ports: portsOf(its), type }
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
  *#sources(hook: Hook, place: Place): Generator<Source, void, undefined> {
    const { podSource } = this.#meaning
    const { pod, node, other, allowed } = place
    const any = interfaces(hook)
    const types = everything(4)
    const allowedRegion = allowed === undefined ? this.#addresses : regionOf(allowed)
    const denied = difference(this.#addresses, allowedRegion)
    if (denied.length > 0) yield { source: denied, sourceType: types, interface: any, fate: DROP }
    if (isSame(pod, other) && isSame(node, other)) {
      yield* this.#hairpins({ source: allowedRegion, sourceType: types, interface: any, fate: other })
      return
    }
    const outside: Pick<Source, 'source' | 'interface'>[] = []
    if (podSource?.kind === 'interface') {
      const bytes = podSource.isPrefix ? podSource.name : podSource.name.padEnd(16, '\0')
      const inside = [prefix(bytes.padEnd(16, '\0'), bytes.length * 8)]
      yield* this.#hairpins({
        source: allowedRegion,
        sourceType: types,
        interface: intersection(any, inside),
        fate: pod,
      })
      outside.push({ source: allowedRegion, interface: difference(any, inside) })
    } else {
      const source = intersection(allowedRegion, this.#pods)
      yield* this.#hairpins({ source, sourceType: types, interface: any, fate: pod })
      outside.push({ source: intersection(allowedRegion, this.#others), interface: any })
    }
    for (const part of outside) {
      if (isSame(node, other)) yield* this.#hairpins({ ...part, sourceType: types, fate: other })
      else {
        yield* this.#hairpins({ ...part, sourceType: LOCAL, fate: node })
        yield* this.#hairpins({ ...part, sourceType: difference(types, LOCAL), fate: other })
      }
    }
  }

  /** Sets clients apart that are an endpoint on this node themselves. */
  *#hairpins(from: Source): Generator<Source, void, undefined> {
    const { fate } = from
    const { localEndpoints } = this.#meaning
    if (from.source.length === 0 || from.interface.length === 0) return
    const own =
      fate.kind === 'endpoints' && !fate.masquerade && localEndpoints.size > 0
        ? regionOfIps(fate.endpoints.map(addressOf).filter(ip => localEndpoints.has(ip)))
        : []
    const met = own.length === 0 ? own : intersection(from.source, own)
    for (const ip of addressesIn(met)) yield { ...from, source: point(ip) }
    const source = met.length === 0 ? from.source : difference(from.source, met)
    if (source.length > 0) yield { ...from, source }
  }

  #anyone(hook: Hook) {
    return { source: this.#addresses, sourceType: everything(4), interface: interfaces(hook) }
  }

  #to(destination: Region, at: { readonly protocol: number; readonly port: number } | undefined) {
    return {
      destination,
      destinationType: everything(4),
      protocol: at === undefined ? everything(1) : point(String.fromCharCode(at.protocol)),
      destinationPort: at === undefined ? PORTS : point(u16be(at.port)),
      sourcePort: PORTS,
    }
  }

  #class(hook: Hook, name: string, { fate, ...box }: Box & { readonly fate: Fate }): PacketClass {
    return { hook, name, fate, box, isOurs: fate !== PASS }
  }
}

interface Group {
  readonly addresses: Region
  readonly isClusterIp: boolean
  readonly ports: ReadonlyMap<Protocol, readonly number[]>
  readonly type: Region
}

export function isSame(a: Fate, b: Fate): boolean {
  if (a === b) return true
  if (a.kind !== 'endpoints' || b.kind !== 'endpoints') return a.kind === b.kind
  return (
    a.masquerade === b.masquerade &&
    a.affinityS === b.affinityS &&
    a.endpoints.length === b.endpoints.length &&
    a.endpoints.every((endpoint, index) => endpoint === b.endpoints[index])
  )
}

/** The address of an endpoint: address and port. */
export function addressOf(endpoint: Octets): Ip {
  return endpoint.slice(0, -2)
}

/** A process of this node has no input interface. */
function interfaces(hook: Hook): Region {
  return hook === 'output' ? point('\0'.repeat(16)) : everything(16)
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

/** One packet of a class, for people. */
export function exampleOf(hook: Hook, box: Box): string {
  const [source, destination] = [exampleIp(box.source), exampleIp(box.destination)]
  const protocol = (onlyValue(box.protocol) ?? box.protocol[0]?.from ?? '\0').charCodeAt(0)
  const name = PROTOCOLS.find(its => NUMBERS[its] === protocol) ?? `protocol ${protocol}`
  const octets = box.destinationPort[0]?.from ?? '\0\0'
  const port = (octets.charCodeAt(0) << 8) | octets.charCodeAt(1)
  const isOwn = onlyValue(box.sourceType) === u32host(RTN_LOCAL)
  const client = `${formatIp(source)}${isOwn ? ' (an address of this node)' : ''}`
  return `${hook}: ${name} from ${client} to ${formatIpPort(destination, port)}`
}

/** Prefers an address that people do not take for a special one. */
function exampleIp(region: Region): Ip {
  const widest = region.find(({ from, to }) => from !== to) ?? region[0]
  return widest?.to ?? ''
}
