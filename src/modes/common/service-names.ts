import { formatIp, formatIpPort, type Ip } from '../../base/ip.ts'
import { readU16be } from '../../base/octets.ts'
import type { Element, Table } from '../../kernel/nft/state.ts'
import type { PortFrontends } from '../../model/frontend.ts'
import { LAYOUTS, protocolOfKey } from './tables.ts'

/** Gives the Service of each place: `namespace/name:port`, or `namespace/name` for a whole Service. */
export interface ServiceNames {
  /** An address and port without a name here belongs to no Service. */
  readonly isComplete: boolean
  at(protocol: string, ip: Ip, port: number): string | undefined
  atNodePort(protocol: string, port: number): string | undefined
  atAddress(ip: Ip): string | undefined
  /** Gives the Service of a ClusterIP, also for ports that no frontend has. */
  atClusterIp(ip: Ip): string | undefined
}

/**
 * Gives the Service of a connection by its original destination. A port of another machine may have the number of a node
 * port, and is not translated.
 */
export function serviceOfFlow(
  names: ServiceNames,
  { protocol, destination: ip, destinationPort: port }: FlowDestination,
  isTranslated: boolean,
): string | undefined {
  return names.at(protocol, ip, port) ?? (isTranslated ? names.atNodePort(protocol, port) : undefined)
}

export interface FlowDestination {
  readonly protocol: string
  readonly destination: Ip
  readonly destinationPort: number
}

/** Gives the names of these service ports, by their addresses and node ports. */
export function namesOfPorts(ports: Iterable<PortFrontends>): ServiceNames {
  const found = noted()
  for (const { protocol, displayName, frontends } of ports)
    for (const { ip, port } of frontends)
      found.places.set(`${protocol} ${ip === undefined ? `:${port}` : formatIpPort(ip, port)}`, displayName)
  return namesIn(found, true)
}

/** Reads names from the comments in our own tables: places that a rule matches, and the ClusterIPs that they lead to. */
export function namesOfElements(tables: readonly Table[]): ServiceNames {
  const found = noted()
  for (const { family, elements } of tables)
    for (const group of elements.values())
      for (const element of group) noteElement(found, element, LAYOUTS[family].addressLength)
  return namesIn(found, false)
}

function noteElement(found: Noted, { key, data, comment }: Element, addressLength: number): void {
  const protocol = protocolOfKey(key)
  if (comment === '' || protocol === undefined) return
  const name = comment.replace(/:.*$/, '')
  const note = (octets: string) => {
    const ip = octets.slice(0, addressLength)
    const port = readU16be(octets, octets === key ? addressLength + 4 : addressLength)
    found.places.set(`${protocol} ${formatIpPort(ip, port)}`, comment)
    found.addresses.set(formatIp(ip), name)
    return formatIp(ip)
  }
  note(key)
  if (typeof data === 'string') found.clusterIps.set(note(data), name)
}

/** Names by `TCP 10.96.0.1:80` (`TCP :30080` for node ports), and by address. */
interface Noted {
  readonly places: Map<string, string>
  readonly addresses: Map<string, string>
  readonly clusterIps: Map<string, string>
}

export function noted(): Noted {
  return { places: new Map(), addresses: new Map(), clusterIps: new Map() }
}

export function namesIn({ places, addresses, clusterIps }: Noted, isComplete: boolean): ServiceNames {
  return {
    isComplete,
    at: (protocol, ip, port) => places.get(`${protocol} ${formatIpPort(ip, port)}`),
    atNodePort: (protocol, port) => places.get(`${protocol} :${port}`),
    atAddress: ip => addresses.get(formatIp(ip)),
    atClusterIp: ip => clusterIps.get(formatIp(ip)),
  }
}
