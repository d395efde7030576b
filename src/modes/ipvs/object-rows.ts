import { formatIpPort } from '../../base/ip.ts'
import { entryText, protocolText } from '../../kernel/ipset/print.ts'
import type { IpsetEntry, IpsetListing } from '../../kernel/ipset/state.ts'
import { destinationKey, isPersistent } from '../../kernel/ipvs/key.ts'
import type { ListedDestination, VirtualServer } from '../../kernel/ipvs/state.ts'
import type { ServiceNames } from '../common/service-names.ts'

/** One virtual server with its real servers. */
export interface ServerRow {
  /** `namespace/name:port`; empty when the name is unknown. */
  readonly service: string
  readonly protocol: string
  /** `10.96.0.1:443`. */
  readonly address: string
  readonly scheduler: string
  readonly affinitySeconds?: number
  readonly destinations: readonly DestinationRow[]
}

interface DestinationRow {
  readonly address: string
  /** A real server with weight 0 gets no new connections. */
  readonly weight: number
  readonly activeConnections: number
  readonly inactiveConnections: number
}

export interface ListedServerWith {
  readonly server: VirtualServer
  readonly destinations: readonly ListedDestination[]
}

/** Makes the rows of virtual servers, sorted by Service and address. Pure. */
export function serverRows(servers: readonly ListedServerWith[], names: ServiceNames): readonly ServerRow[] {
  return servers
    .map(({ server, destinations }): ServerRow => {
      const { protocol, ip, port, scheduler, timeoutS } = server
      return {
        service: nameOf(server, names),
        protocol,
        address: formatIpPort(ip, port),
        scheduler,
        ...(isPersistent(server) ? { affinitySeconds: timeoutS } : {}),
        destinations: destinations.map(each => ({
          address: destinationKey(each.destination),
          weight: each.destination.weight,
          activeConnections: each.activeConnections,
          inactiveConnections: each.inactiveConnections,
        })),
      }
    })
    .sort((a, b) => compare(a.service, b.service) || compare(a.address, b.address))
}

/** Names a virtual server. A private one has the ClusterIP of its Service. */
export function nameOf(
  { protocol, ip, port }: Pick<VirtualServer, 'protocol' | 'ip' | 'port'>,
  names: ServiceNames,
): string {
  return names.at(protocol, ip, port) ?? names.atClusterIp(ip) ?? names.atNodePort(protocol, port) ?? ''
}

interface EntryRow {
  readonly set: string
  /** The entry in the syntax of the ipset command. */
  readonly entry: string
  readonly service: string
}

/** Makes the rows of entries, in the order of the sets. Pure. */
export function entryRows(sets: readonly IpsetListing[], names: ServiceNames): readonly EntryRow[] {
  return sets.flatMap(({ set, entries }) =>
    entries.map(entry => ({
      set: set.name,
      entry: entryText(set, entry),
      service: entryService(set.name, entry, names),
    })),
  )
}

export function entryService(set: string, { ip, protocol, port }: IpsetEntry, names: ServiceNames): string {
  if (port === undefined) return (ip === undefined ? undefined : names.atAddress(ip)) ?? ''
  if (ip === undefined) return names.atNodePort(set.endsWith('UDP') ? 'UDP' : 'TCP', port) ?? ''
  const name = protocolText(protocol ?? 0).toUpperCase()
  return names.at(name, ip, port) ?? names.atNodePort(name, port) ?? ''
}

function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0
}
