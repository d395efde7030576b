import { printSets } from '../../kernel/ipset/print.ts'
import { printSave } from '../../kernel/ipvs/print.ts'
import type { ModeDump } from '../mode.ts'
import { entryRows, type ServerRow, serverRows } from './object-rows.ts'
import { readServers, readSets } from './read.ts'

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
