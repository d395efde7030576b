import { familyOf, formatIpPort } from '../../base/ip.ts'
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
import type { ServiceNames } from '../common/service-names.ts'
import { isOfService } from '../common/show.ts'
import { familyName } from '../common/tables.ts'
import type { DumpFilter, KernelAccess, ModeDump } from '../mode.ts'
import { allSetNames } from './layout.ts'
import { readIpvsState, withIpvsKernel } from './observe.ts'
import { nameOf } from './show.ts'

const SERVERS: ModeDump = {
  what: 'ipvs',
  saveFormat: 'ipvsadm-save',
  async read(kernel, filter) {
    const listed = await readServers(kernel, filter)
    const rows = serverRows(listed, filter.names)
    return {
      heading: ['SERVICE', 'VIRTUAL SERVER', 'SCHEDULER', 'DESTINATION', 'WEIGHT', 'CONNECTIONS'],
      rows: rows.flatMap(serverCells),
      value: { servers: rows },
      save: printSave(
        listed.map(({ server, destinations }) => ({
          server,
          destinations: destinations.map(({ destination }) => destination),
        })),
      ),
      isEmpty: rows.length === 0,
      hasUnnamed: rows.some(({ service }) => service === ''),
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
      hasUnnamed: rows.some(({ service }) => service === ''),
    }
  },
}

export const IPVS_DUMPS: readonly ModeDump[] = [SERVERS, SETS]

interface ListedServerWith {
  readonly server: VirtualServer
  readonly destinations: readonly ListedDestination[]
}

/** Makes the rows of virtual servers, sorted by Service and address; `service` is empty when it is unknown. Pure. */
export function serverRows(servers: readonly ListedServerWith[], names: ServiceNames) {
  return servers
    .map(({ server, destinations }) => {
      const { protocol, ip, port, scheduler, timeoutS } = server
      return {
        service: nameOf(server, names),
        protocol,
        address: formatIpPort(ip, port),
        scheduler,
        ...(isPersistent(server) ? { affinitySeconds: timeoutS } : {}),
        destinations: destinations.map(({ destination, activeConnections, inactiveConnections }) => ({
          address: destinationKey(destination),
          weight: destination.weight,
          activeConnections,
          inactiveConnections,
        })),
      }
    })
    .sort((a, b) => compareTexts(a.service, b.service) || compareTexts(a.address, b.address))
}

function serverCells(row: ReturnType<typeof serverRows>[number]): readonly (readonly string[])[] {
  const sticky = row.affinitySeconds === undefined ? '' : ` sticky ${row.affinitySeconds}s`
  const head = [row.service || '-', `${row.protocol} ${row.address}`, row.scheduler + sticky]
  if (row.destinations.length === 0) return [[...head, 'none', '-', '-']]
  return row.destinations.map((each, at) => [
    ...(at === 0 ? head : ['', '', '']),
    each.address,
    each.weight === 0 ? 'drains' : String(each.weight),
    `${each.activeConnections}+${each.inactiveConnections}`,
  ])
}

/**
 * Makes the rows of entries, each in the syntax of the ipset command, in the order of the sets, and sorted: the kernel's
 * order differs with every set. Pure.
 */
export function entryRows(sets: readonly IpsetListing[], names: ServiceNames) {
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

/** Reads our virtual servers, with the number of connections of each real server. */
async function readServers(context: KernelAccess, filter: DumpFilter): Promise<readonly ListedServerWith[]> {
  const { families, service, names } = filter
  return await withIpvsKernel(context, async kernel => {
    const { servers } = await readIpvsState(kernel)
    const shown = [...servers.values()]
      .map(({ server }) => server)
      .filter(({ ip }) => families.includes(familyName(familyOf(ip))))
      .filter(server => isOfService([nameOf(server, names)], service))
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
  // Only the name of a bitmap of ports contains a family.
  const shown = sets.filter(({ set }) => families.includes(set.name.startsWith('KUBE-6-') ? 'ip6' : 'ip'))
  if (service === '') return shown
  return shown
    .map(listing => {
      const { set, entries } = listing
      const isOf = (entry: IpsetEntry) => isOfService([entryService(set.name, entry, names)], service)
      return { ...listing, entries: entries.filter(isOf) }
    })
    .filter(({ entries }) => entries.length > 0)
}
