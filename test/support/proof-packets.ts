import { readU16be, u32host } from '../../src/base/octets.ts'
import { RTN_LOCAL } from '../../src/kernel/nft/constants.ts'
import { includes, onlyValue, type Region, sizeOf } from '../../src/proof/evaluate/region.ts'
import type { TracePacket, Way } from '../../src/proof/evaluate/trace.ts'
import { addressOf, type PacketClass } from '../../src/proof/packet-class.ts'

type Random = (bound: number) => number

function anyOf(region: Region, random: Random): string {
  const interval = region[random(region.length)]
  if (interval === undefined) return ''
  return random(2) === 0 ? interval.from : interval.to
}

/** A packet of a class; undefined where the class wants an address of the node and its region has none. */
export function packetOf(
  { hook, box, fate }: PacketClass,
  { localIps, random }: { readonly localIps: ReadonlySet<string>; readonly random: Random },
): TracePacket | undefined {
  if (sizeOf(box.source) === 0) return undefined
  const wantsLocal = onlyValue(box.sourceType) === u32host(RTN_LOCAL)
  const candidates = [...localIps].filter(each =>
    box.source.some(({ from, to }) => from <= each && each <= to && each.length === from.length),
  )
  // An endpoint that connects to itself is one packet among very many.
  const endpoints = fate.kind === 'endpoints' && random(3) === 0 ? fate.endpoints : []
  const itself = endpoints.map(addressOf).find(each => includes(box.source, each))
  const source = wantsLocal
    ? candidates[random(Math.max(1, candidates.length))]
    : (itself ?? anyOf(box.source, random))
  if (source === undefined) return undefined
  const name = anyOf(box.interface, random).replace(/\0.*/s, '')
  return {
    origin: hook === 'output' ? 'process' : 'interface',
    protocol: anyOf(box.protocol, random).charCodeAt(0),
    source,
    sourcePort: 40_000,
    destination: anyOf(box.destination, random),
    destinationPort: readU16be(anyOf(box.destinationPort, random)),
    interfaceName: name,
  }
}

/** What may happen to a packet, with how likely it is, in a text that is equal for equal outcomes. */
export function outcomesOf(ways: readonly Way[]): readonly string[] {
  return ways
    .map(({ trace: { verdict, destination, masquerade }, probability }) =>
      JSON.stringify([verdict, destination, verdict === 'dnat' && masquerade, probability.toFixed(6)]),
    )
    .sort()
}
