import type { Cidr, Ip } from '../base/ip.ts'
import { PROTOCOL_NUMBERS } from '../base/ip-packet.ts'
import { u16be } from '../base/octets.ts'
import type { Protocol } from '../model/service.ts'
import { difference, everything, intersection, point, prefix, type Region, union } from './evaluate/region.ts'
import { type Box, type Hook, LOCAL, regionOfIps } from './evaluate/values.ts'
import { DROP, type FamilyMeaning, type Fate, PASS, type Place, portKey } from './meaning.ts'
import { isSame, type PacketClass, PROTOCOLS } from './packet-class.ts'

export const TYPES = everything(4)
export const NOT_LOCAL = difference(TYPES, LOCAL)

interface Origin {
  readonly source: Region
  readonly interface: Region
}

/** Packets from somewhere, that meet one fate. */
export interface Source extends Origin {
  readonly sourceType: Region
  readonly fate: Fate
}

export class Sources {
  readonly #meaning: FamilyMeaning
  readonly #addresses: Region
  readonly #pods: Region
  readonly #others: Region

  constructor(meaning: FamilyMeaning) {
    const { family, podSource } = meaning
    this.#meaning = meaning
    this.#addresses = everything(family === 'IPv4' ? 4 : 16)
    this.#pods = podSource?.kind === 'cidr' ? regionOf([podSource.cidr]) : []
    this.#others = difference(this.#addresses, this.#pods)
  }

  anyone(hook: Hook, fate: Fate): Source {
    return { source: this.#addresses, sourceType: TYPES, interface: interfaces(hook), fate }
  }

  at(hook: Hook, place: Place): readonly Source[] {
    const { pod, node, other, allowed } = place
    const any = interfaces(hook)
    const allowedRegion = allowed === undefined ? this.#addresses : regionOf(allowed)
    const denied = allowed === undefined ? [] : difference(this.#addresses, allowedRegion)
    const sources: Source[] = [{ source: denied, sourceType: TYPES, interface: any, fate: DROP }]
    if (isSame(pod, other) && isSame(node, other))
      sources.push({ source: allowedRegion, sourceType: TYPES, interface: any, fate: other })
    else {
      const [pods, others] = this.#partsOf(any, allowed && allowedRegion)
      sources.push(from(pods, TYPES, pod))
      if (isSame(node, other)) sources.push(from(others, TYPES, other))
      else sources.push(from(others, LOCAL, node), from(others, NOT_LOCAL, other))
    }
    // A client may be an endpoint on this node itself: the evaluator divides their packets.
    const real = sources.filter(({ source, interface: name }) => source.length > 0 && name.length > 0)
    return this.#withOwn(place, real)
  }

  #serviceAddresses: Region | undefined
  readonly #ownParts = new WeakMap<Region, { readonly inside: Region; readonly outside: Region }>()

  /** A process of this node sends to an address of a Service from that address: no endpoint could reply to it. */
  #withOwn({ ip }: Place, sources: readonly Source[]): readonly Source[] {
    const { promises, places, clusterIps, localIps } = this.#meaning
    if (!promises.bindsAddresses || ip === undefined || !this.#meaning.clusterIps.has(ip)) return sources
    this.#serviceAddresses ??= regionOfIps(
      [...clusterIps, ...places.flatMap(its => its.ip ?? [])].filter(its => !localIps.has(its)),
    )
    const own = this.#serviceAddresses
    return sources.flatMap(its => {
      const { source, fate } = its
      if (fate.kind !== 'endpoints' || fate.masquerade) return [its]
      const { inside, outside } = this.#ownParts.get(source) ?? {
        inside: intersection(source, own),
        outside: difference(source, own),
      }
      this.#ownParts.set(source, { inside, outside })
      const parts = [
        { ...its, source: outside },
        { ...its, source: inside, fate: { ...fate, masquerade: true } },
      ]
      return parts.filter(part => part.source.length > 0)
    })
  }

  #partsOf(any: Region, allowed: Region | undefined): readonly [Origin, Origin] {
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
    // Without ranges, all places share the regions, and what #withOwn keeps of them.
    const within = (part: Region): Origin => ({
      source: allowed === undefined ? part : intersection(allowed, part),
      interface: any,
    })
    return [within(this.#pods), within(this.#others)]
  }
}

function from({ source, interface: name }: Origin, sourceType: Region, fate: Fate): Source {
  return { source, interface: name, sourceType, fate }
}

const NO_INTERFACE = point('\0'.repeat(16))
const INTERFACES = everything(16)

/** A process of this node has no input interface. */
function interfaces(hook: Hook): Region {
  return hook === 'output' ? NO_INTERFACE : INTERFACES
}

export function regionOf(cidrs: readonly Cidr[]): Region {
  return union(cidrs.map(({ ip, bits }) => prefix(ip, bits)))
}

const PORTS = everything(2)

export type Destination = Pick<Box, 'destination' | 'destinationType' | 'protocol' | 'destinationPort'>

export function destinationAt(destination: Region, { protocol, port }: Place): Destination {
  return {
    destination,
    destinationType: TYPES,
    protocol: point(String.fromCharCode(PROTOCOL_NUMBERS[protocol])),
    destinationPort: point(u16be(port)),
  }
}

export function classOf(hook: Hook, at: Place | string, to: Destination, from: Source): PacketClass {
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

export type AtPort = Pick<Place, 'protocol' | 'port'>

/** Divides packets to ports that are not taken by their protocols. */
export function* untaken(
  taken: readonly AtPort[],
): Generator<Pick<Box, 'protocol' | 'destinationPort'>, void, undefined> {
  for (const [protocol, numbers] of PROTOCOL_REGIONS) {
    const ports = taken.filter(its => its.protocol === protocol).map(({ port }) => prefix(u16be(port), 16))
    const destinationPort = difference(PORTS, union(ports))
    if (destinationPort.length > 0) yield { protocol: numbers, destinationPort }
  }
}

const OCTETS = PROTOCOLS.map(protocol => String.fromCharCode(PROTOCOL_NUMBERS[protocol]))
/** Undefined for all that Services cannot have. */
const PROTOCOL_REGIONS: readonly (readonly [Protocol | undefined, Region])[] = [
  ...PROTOCOLS.map((protocol, index) => [protocol, point(OCTETS[index] ?? '')] as const),
  [undefined, difference(everything(1), union(OCTETS.map(octet => ({ from: octet, to: octet }))))],
]

/** Groups addresses with the same ports and the same result of `told`; the rest of `all` comes last. */
export function grouped(
  all: Region,
  byAddress: ReadonlyMap<Ip, readonly AtPort[]>,
  told: (ip: Ip, ports: readonly AtPort[]) => string = () => '',
): readonly { readonly addresses: Region; readonly ports: readonly AtPort[] }[] {
  const groups = new Map<string, { readonly ips: Ip[]; readonly ports: readonly AtPort[] }>()
  for (const [ip, ports] of byAddress) {
    const key = `${told(ip, ports)} ${ports.map(portKey).sort().join()}`
    const group = groups.get(key)
    if (group === undefined) groups.set(key, { ips: [ip], ports })
    else group.ips.push(ip)
  }
  const named = [...groups.values()].map(({ ips, ports }) => ({ addresses: regionOfIps(ips), ports }))
  return [...named, { addresses: difference(all, regionOfIps(byAddress.keys())), ports: [] }]
}
