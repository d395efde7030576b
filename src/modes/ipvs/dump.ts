import { type Family, familyOf, formatIpPort } from '../../base/ip.ts'
import { compareTexts } from '../../base/text.ts'
import {
  entryText,
  type IpsetEntry,
  type IpsetListing,
  printSets,
  protocolText,
} from '../../kernel/ipset/state.ts'
import {
  destinationKey,
  isPersistent,
  type ListedDestination,
  printSave,
  type VirtualServer,
} from '../../kernel/ipvs/state.ts'
import { familyName, isOfService, type ServiceNames } from '../common/show.ts'
import type { DumpFilter, KernelAccess, ModeDump } from '../mode.ts'
import { allSetNames } from './layout.ts'
import { type IpvsKernel, observeKernel, withIpvsKernel } from './observe.ts'
import { DEFAULT_IPVS_OPTIONS } from './settings.ts'
import type { IpvsState } from './state.ts'

const SERVERS: ModeDump = {
  what: 'ipvs',
  saveFormat: 'ipvsadm-save',
  async read(kernel, filter) {
    const listed = await readServers(kernel, filter)
    const rows = serverRows(listed, filter.names)
    return {
      heading: ['SERVICE', 'VIRTUAL SERVER', 'SCHEDULER', 'DESTINATION', 'WEIGHT', 'CONNECTIONS'],
      rows: serverCells(rows),
      value: { servers: rows },
      save: printSave(
        listed.map(({ server, destinations }) => ({
          server,
          destinations: destinations.map(({ destination }) => destination),
        })),
      ),
      isEmpty: rows.length === 0,
      hasUnnamed: rows.some(isUnnamed),
    }
  },
}

const SETS: ModeDump = {
  what: 'ipset',
  saveFormat: 'ipset-save',
  async read(kernel, filter) {
    const sets = await readSets(kernel, filter)
    const rows = entryRows(sets, filter.names)
    return {
      heading: ['SERVICE', 'SET', 'ENTRY'],
      rows: rows.map(({ set, entry, service }) => [service || '-', set, entry]),
      value: { sets: sets.map(({ entries: _, ...header }) => header), entries: rows },
      save: printSets(sets),
      isEmpty: sets.length === 0,
      hasUnnamed: rows.some(isUnnamed),
    }
  },
}

export const IPVS_DUMPS: readonly ModeDump[] = [SERVERS, SETS]

function isUnnamed({ service }: { readonly service: string }): boolean {
  return service === ''
}

function serverCells(rows: readonly ServerRow[]): readonly (readonly string[])[] {
  return rows.flatMap(row => {
    const sticky = row.affinitySeconds === undefined ? '' : ` sticky ${row.affinitySeconds}s`
    const head = [row.service || '-', `${row.protocol} ${row.address}`, row.scheduler + sticky]
    if (row.destinations.length === 0) return [[...head, 'none', '-', '-']]
    return row.destinations.map((each, at) => [
      ...(at === 0 ? head : ['', '', '']),
      each.address,
      each.weight === 0 ? 'drains' : String(each.weight),
      `${each.activeConnections}+${each.inactiveConnections}`,
    ])
  })
}

/** One virtual server with its real servers. */
interface ServerRow {
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

interface ListedServerWith {
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
    .sort((a, b) => compareTexts(a.service, b.service) || compareTexts(a.address, b.address))
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

/** Makes the rows of entries, in the order of the sets, and sorted: the kernel's order differs with every set. Pure. */
export function entryRows(sets: readonly IpsetListing[], names: ServiceNames): readonly EntryRow[] {
  return sets.flatMap(({ set, entries }) =>
    entries
      .map(entry => ({
        set: set.name,
        entry: entryText(set, entry),
        service: entryService(set.name, entry, names),
      }))
      .sort((a, b) => compareTexts(a.entry, b.entry)),
  )
}

function entryService(set: string, { ip, protocol, port }: IpsetEntry, names: ServiceNames): string {
  if (port === undefined) return (ip === undefined ? undefined : names.atAddress(ip)) ?? ''
  if (ip === undefined) return names.atNodePort(set.endsWith('UDP') ? 'UDP' : 'TCP', port) ?? ''
  const name = protocolText(protocol ?? 0).toUpperCase()
  return names.at(name, ip, port) ?? names.atNodePort(name, port) ?? ''
}

/** Reads all objects of IPVS mode that are ours. */
export async function readIpvsState(kernel: IpvsKernel): Promise<IpvsState> {
  return (await observeKernel(kernel, { ...DEFAULT_IPVS_OPTIONS, remembered: new Map() })).state
}

/** Reads the whole state. Throws where the kernel cannot be read. */
export async function readWholeState(context: KernelAccess): Promise<IpvsState> {
  return await withIpvsKernel(context, readIpvsState)
}

/** Reads our virtual servers, with the number of connections of each real server. */
async function readServers(context: KernelAccess, filter: DumpFilter): Promise<readonly ListedServerWith[]> {
  const { families, service, names } = filter
  return await withIpvsKernel(context, async kernel => {
    const { servers } = await readIpvsState(kernel)
    const shown = [...servers.values()]
      .map(({ server }) => server)
      .filter(
        server =>
          families.includes(familyName(familyOf(server.ip))) && isOfService([nameOf(server, names)], service),
      )
    const lists = await kernel.ipvs.destinations(shown)
    return shown.map((server, at) => ({ server, destinations: lists[at] ?? [] }))
  })
}

/** Reads the ipsets of this mode, including those of kube-proxy's IPVS mode, which have the same names. */
async function readSets(
  context: KernelAccess,
  { families, service, names }: DumpFilter,
): Promise<readonly IpsetListing[]> {
  const sets = await withIpvsKernel(context, ({ ipset }) => ipset.list(allSetNames()))
  const shown = sets.filter(({ set }) => families.includes(familyName(setFamily(set.name))))
  if (service === '') return shown
  return shown
    .map(listing => {
      const { set, entries } = listing
      return {
        ...listing,
        entries: entries.filter(entry => isOfService([entryService(set.name, entry, names)], service)),
      }
    })
    .filter(({ entries }) => entries.length > 0)
}

/** Gives the family of a set. Only the name of a bitmap of ports contains a family. */
function setFamily(name: string): Family {
  return name.startsWith('KUBE-6-') ? 'IPv6' : 'IPv4'
}
