import { systemClock } from '../base/clock.ts'
import { type Family, familyOf } from '../base/ip.ts'
import { openIpvsKernel } from '../daemon/mode-ipvs.ts'
import { KERNEL } from '../daemon/open.ts'
import { printSets } from '../kernel/ipset/print.ts'
import type { IpsetListing } from '../kernel/ipset/state.ts'
import { printSave } from '../kernel/ipvs/print.ts'
import { type IpvsKernel, observeKernel } from '../modes/ipvs/observe.ts'
import { DEFAULT_IPVS_OPTIONS } from '../modes/ipvs/options.ts'
import { allSetNames } from '../modes/ipvs/set-names.ts'
import type { IpvsState } from '../modes/ipvs/state.ts'
import {
  type EntryRow,
  entryRows,
  entryService,
  type ListedServerWith,
  nameOf,
  type ServerRow,
  serverRows,
} from './ipvs-rows.ts'
import type { ServiceNames } from './service-names.ts'
import { tableText } from './table.ts'

/** What is shown of it. */
export interface IpvsFilter {
  readonly families: readonly Family[]
  /** Empty for all. */
  readonly service: string
  readonly names: ServiceNames
}

/** Reads with the clients of IPVS mode, which are closed then. Throws where the kernel lacks what is asked. */
async function withKernel<T>(read: (kernel: IpvsKernel) => Promise<T>): Promise<T> {
  const { kernel, close } = openIpvsKernel(KERNEL, systemClock)
  try {
    return await read(kernel)
  } finally {
    await close()
  }
}

/** Everything of IPVS mode that is ours. */
export async function readIpvsState(kernel: IpvsKernel): Promise<IpvsState> {
  return (await observeKernel(kernel, { ...DEFAULT_IPVS_OPTIONS, remembered: new Map() })).state
}

/** Throws where the kernel cannot be read. */
export async function readWholeState(): Promise<IpvsState> {
  return await withKernel(readIpvsState)
}

/** Our virtual servers, and how many connections each real server has. */
export async function readServers(filter: IpvsFilter): Promise<readonly ListedServerWith[]> {
  const { families, service, names } = filter
  return await withKernel(async kernel => {
    const { servers } = await readIpvsState(kernel)
    const shown = [...servers.values()]
      .map(({ server }) => server)
      .filter(server => families.includes(familyOf(server.ip)) && isOf(service, nameOf(server, names)))
    const lists = await kernel.ipvs.destinations(shown)
    return shown.map((server, at) => ({ server, destinations: lists[at] ?? [] }))
  })
}

/** The ipsets of this mode, those of kube-proxy's IPVS mode included: they have the same names. */
export async function readSets({ families, service, names }: IpvsFilter): Promise<readonly IpsetListing[]> {
  const sets = await withKernel(({ ipset }) => ipset.list(allSetNames()))
  const shown = sets.filter(({ set }) => families.includes(setFamily(set.name)))
  if (service === '') return shown
  return shown
    .map(listing => {
      const { set, entries } = listing
      return {
        ...listing,
        entries: entries.filter(entry => isOf(service, entryService(set.name, entry, names))),
      }
    })
    .filter(({ entries }) => entries.length > 0)
}

/** A bitmap of ports has no family but in its name. */
function setFamily(name: string): Family {
  return name.startsWith('KUBE-6-') ? 'IPv6' : 'IPv4'
}

function isOf(service: string, name: string): boolean {
  return service === '' || name === service || name.startsWith(`${service}:`)
}

export interface Shown {
  readonly text: (options: { readonly colour: boolean }) => string
  /** For json and yaml. */
  readonly value: unknown
  /** As the tool's own save prints it. */
  readonly save: readonly string[]
  readonly isEmpty: boolean
  readonly hasUnnamed: boolean
}

export async function showServers(filter: IpvsFilter): Promise<Shown> {
  const listed = await readServers(filter)
  const rows = serverRows(listed, filter.names)
  return {
    text: options => serversText(rows, options),
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
}

export async function showSets(filter: IpvsFilter): Promise<Shown> {
  const sets = await readSets(filter)
  const rows = entryRows(sets, filter.names)
  return {
    text: options => entriesText(rows, options),
    value: { sets: sets.map(({ entries: _, ...header }) => header), entries: rows },
    save: [...printSets(sets)],
    isEmpty: sets.length === 0,
    hasUnnamed: rows.some(isUnnamed),
  }
}

function isUnnamed({ service }: { readonly service: string }): boolean {
  return service === ''
}

function serversText(rows: readonly ServerRow[], options: { readonly colour: boolean }): string {
  const cells = rows.flatMap(row => {
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
  return tableText(
    ['SERVICE', 'VIRTUAL SERVER', 'SCHEDULER', 'DESTINATION', 'WEIGHT', 'CONNECTIONS'],
    cells,
    options,
  )
}

function entriesText(rows: readonly EntryRow[], options: { readonly colour: boolean }): string {
  const cells = rows.map(({ set, entry, service }) => [service || '-', set, entry])
  return tableText(['SERVICE', 'SET', 'ENTRY'], cells, options)
}
