import { formatIp, formatIpPort, type Ip } from '../../base/ip.ts'
import { readU16be } from '../../base/octets.ts'
import type { Element, Table } from '../../kernel/nft/state.ts'
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
