import { u16be } from '../base/octets.ts'
import { difference, everything, point, type Region, union } from '../base/region.ts'
import { type Box, type Hook, NUMBERS } from '../kernel/evaluate/box.ts'
import type { Protocol } from '../model/service.ts'
import { PASS, type Place } from './meaning.ts'
import { type PacketClass, PROTOCOLS } from './packet-class.ts'
import { type Source, TYPES } from './sources.ts'

export const PORTS = everything(2)

/** Where packets are sent to. */
export type Destination = Pick<Box, 'destination' | 'destinationType' | 'protocol' | 'destinationPort'>

/** Many places have the same port. */
export class Destinations {
  readonly #points = new Map<string, Pick<Box, 'protocol' | 'destinationPort'>>()

  at(destination: Region, { protocol, port }: Place): Destination {
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

export function* protocolRegions(): Generator<readonly [Protocol | undefined, Region], void, undefined> {
  const known = PROTOCOLS.map(protocol => String.fromCharCode(NUMBERS[protocol]))
  for (const [index, protocol] of PROTOCOLS.entries()) yield [protocol, point(known[index] ?? '')]
  yield [undefined, difference(everything(1), union(known.map(octet => ({ from: octet, to: octet }))))]
}

export function portsOf(places: readonly string[]): ReadonlyMap<Protocol, readonly number[]> {
  return new Map(
    PROTOCOLS.map(protocol => [
      protocol,
      places.flatMap(place =>
        place.startsWith(`${protocol} `) ? [Number(place.slice(protocol.length))] : [],
      ),
    ]),
  )
}
