import { type Ip, PROTOCOL_NUMBERS } from '../base/ip.ts'
import { u16be } from '../base/octets.ts'
import { difference, everything, point, prefix, type Region, union } from '../base/region.ts'
import { type Box, type Hook, regionOfIps } from '../kernel/evaluate/values.ts'
import type { Protocol } from '../model/service.ts'
import { PASS, type Place, portKey } from './meaning.ts'
import { type PacketClass, PROTOCOLS } from './packet-class.ts'
import { type Source, TYPES } from './sources.ts'

const PORTS = everything(2)

/** Where packets are sent to. */
export type Destination = Pick<Box, 'destination' | 'destinationType' | 'protocol' | 'destinationPort'>

/** Many places have the same port. */
export class Destinations {
  readonly #points = new Map<string, Pick<Box, 'protocol' | 'destinationPort'>>()

  at(destination: Region, { protocol, port }: Place): Destination {
    const key = `${protocol}${port}`
    const known = this.#points.get(key) ?? {
      protocol: point(String.fromCharCode(PROTOCOL_NUMBERS[protocol])),
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

/** Divides packets to ports that are not taken by their protocols; with `at`, those to this port alone. */
export function* untaken(
  taken: readonly AtPort[],
  at: AtPort | undefined,
): Generator<Pick<Box, 'protocol' | 'destinationPort'>, void, undefined> {
  const among = at === undefined ? PORTS : point(u16be(at.port))
  for (const [protocol, numbers] of PROTOCOL_REGIONS) {
    if (at !== undefined && protocol !== at.protocol) continue
    const ports = taken.filter(its => its.protocol === protocol).map(({ port }) => prefix(u16be(port), 16))
    const destinationPort = difference(among, union(ports))
    if (destinationPort.length > 0) yield { protocol: numbers, destinationPort }
  }
}

const OCTETS = PROTOCOLS.map(protocol => String.fromCharCode(PROTOCOL_NUMBERS[protocol]))
/** Undefined for all that Services cannot have. */
const PROTOCOL_REGIONS: readonly (readonly [Protocol | undefined, Region])[] = [
  ...PROTOCOLS.map((protocol, index) => [protocol, point(OCTETS[index] ?? '')] as const),
  [undefined, difference(everything(1), union(OCTETS.map(octet => ({ from: octet, to: octet }))))],
]

/** Puts addresses together that have the same ports, and of which `told` says the same; `all` without them come last. */
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
