import { formatIp, formatIpPort, type Ip } from '../base/ip.ts'
import { PROTOCOL_NUMBERS } from '../base/ip-packet.ts'
import { type Octets, readU16be, u32host } from '../base/octets.ts'
import { RTN_LOCAL } from '../kernel/nft/constants.ts'
import type { Protocol } from '../model/service.ts'
import { onlyValue, type Region } from './evaluate/region.ts'
import type { Box, Hook } from './evaluate/values.ts'
import type { Fate, Place } from './meaning.ts'

export function nameOf({ at }: Pick<PacketClass, 'at'>): string {
  if (typeof at === 'string') return at
  const { ip, name, port, protocol } = at
  const place = ip === undefined ? `node port ${port}` : formatIpPort(ip, port)
  return `${name} at ${place}/${protocol}`
}

/** Packets that must all meet the same fate. */
export interface PacketClass {
  readonly hook: Hook
  readonly box: Box
  readonly fate: Fate
  /** The destination: a place of a Service, or another destination in words. */
  readonly at: Place | string
  /** They are sent to a Service, or to an address that only Services have. */
  readonly isOurs: boolean
}

export const PROTOCOLS: readonly Protocol[] = ['TCP', 'UDP', 'SCTP']

export function isSame(a: Fate, b: Fate): boolean {
  if (a === b) return true
  if (a.kind !== 'endpoints' || b.kind !== 'endpoints') return a.kind === b.kind
  return (
    a.masquerade === b.masquerade &&
    a.affinityS === b.affinityS &&
    (a.endpoints === b.endpoints ||
      (a.endpoints.length === b.endpoints.length &&
        a.endpoints.every((endpoint, index) => endpoint === b.endpoints[index])))
  )
}

export function addressOf(endpoint: Octets): Ip {
  return endpoint.slice(0, -2)
}

export function protocolOf(box: Box): Protocol | undefined {
  const number = onlyValue(box.protocol)?.charCodeAt(0)
  return PROTOCOLS.find(its => PROTOCOL_NUMBERS[its] === number)
}

export function exampleOf(hook: Hook, box: Box): string {
  const [source, destination] = [exampleIp(box.source), exampleIp(box.destination)]
  const protocol = (onlyValue(box.protocol) ?? box.protocol[0]?.from ?? '\0').charCodeAt(0)
  const name = PROTOCOLS.find(its => PROTOCOL_NUMBERS[its] === protocol) ?? `protocol ${protocol}`
  const port = readU16be(box.destinationPort[0]?.from ?? '\0\0')
  const isOwn = onlyValue(box.sourceType) === u32host(RTN_LOCAL)
  const client = `${formatIp(source)}${isOwn ? ' (an address of this node)' : ''}`
  return `${hook}: ${name} from ${client} to ${formatIpPort(destination, port)}`
}

/** Prefers an address that people do not take for a special one. */
function exampleIp(region: Region): Ip {
  const widest = region.find(({ from, to }) => from !== to) ?? region[0]
  return widest?.to ?? ''
}
