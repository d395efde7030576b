import { PersistentMap } from '../base/persistent-map.ts'
import { bytesText, count, oneLine } from '../base/text.ts'
import { totalsOf } from '../daemon/banner.ts'
import type { Sync, Written } from '../daemon/daemon.ts'
import type { FrontendTable } from '../model/frontend.ts'
import type { Service } from '../model/service.ts'
import { nodePortText, serviceRows, serviceTable } from './service-rows.ts'

/** Services that the table at the start lists; `kprobe dump` prints all. */
const SERVICES_SHOWN = 200
const NAMES_SHOWN = 10

interface SyncTextOptions {
  readonly color: boolean
  readonly dryRun: boolean
  /** The name of this proxy; undefined for the unnamed one. */
  readonly serviceProxyName?: string | undefined
}

/**
 * Formats the output of `run` after a sync: a table after the first, a line after a change, nothing without a change.
 */
export function syncText(sync: Sync, options: SyncTextOptions): string {
  const { table, quarantined, previous, written } = sync
  if (previous !== undefined) return changeText(previous, table, written)
  const shown = firstKeys(table)
  const hidden = table.services.size - shown.length
  return [
    serviceTable(serviceRows(table, shown), options),
    hidden > 0 ? `... and ${count(hidden, 'more Service')}; \`kprobe dump\` prints them all\n` : '',
    idleText(sync, options.serviceProxyName),
    nodePortLine(table),
    `${options.dryRun ? 'would program' : 'programmed'} ${totalsText(sync)}: ${writtenText(written)}\n`,
    quarantined.length === 0
      ? ''
      : `rejected by the kernel: ${namesText(quarantined)}; the log has the error\n`,
  ].join('')
}

/** Selects Services to print: sorted by name if all are printed, else any. */
function firstKeys(table: FrontendTable): string[] {
  const keys: string[] = []
  for (const key of table.services.keys()) {
    if (keys.length === SERVICES_SHOWN) break
    keys.push(key)
  }
  return keys.sort()
}

function changeText(previous: FrontendTable, table: FrontendTable, written: Written): string {
  const keys = [...PersistentMap.changes(previous.services, table.services)]
  if (keys.length === 0 && written.commits === 0) return ''
  if (keys.length === 0) return `updated: ${writtenText(written)}\n`
  return `changed ${namesText(keys)}: ${writtenText(written)}\n`
}

function namesText(keys: readonly string[]): string {
  const names = keys.toSorted().slice(0, NAMES_SHOWN).map(oneLine).join(', ')
  return keys.length > NAMES_SHOWN ? `${names} and ${keys.length - NAMES_SHOWN} more` : names
}

function writtenText({ commits, changes, bytes, durationMs }: Written): string {
  if (commits === 0) return 'the kernel already holds everything'
  const size =
    bytes === 0 ? '' : `, ${bytesText(bytes)} in ${count(commits, 'commit')}, ${durationMs.toFixed(1)} ms`
  return `${count(changes, 'kernel object')}${size}`
}

function totalsText({ table, quarantined }: Sync): string {
  const { services, frontends, endpoints } = totalsOf(table, quarantined)
  return [count(services, 'Service'), count(frontends, 'frontend'), count(endpoints, 'endpoint')].join(', ')
}

/** Lists Services that need nothing on this node, with the reason, because the table does not contain them. */
function idleText({ snapshot, table }: Sync, proxyName: string | undefined): string {
  const idle: string[] = []
  let more = 0
  for (const service of snapshot.services.values()) {
    if ((table.services.get(service.key)?.ports.length ?? 0) > 0) continue
    if (idle.length < NAMES_SHOWN) idle.push(`${service.key} (${whyIdle(service, proxyName)})`)
    else more++
  }
  if (idle.length === 0) return ''
  return `nothing to program for ${idle.sort().map(oneLine).join(', ')}${more > 0 ? ` and ${more} more` : ''}\n`
}

function whyIdle(
  { type, proxyName, clusterIps, headless, refusals }: Service,
  own: string | undefined,
): string {
  if (type === 'ExternalName') return 'ExternalName'
  if (proxyName !== own)
    return proxyName === undefined
      ? 'left to the unnamed proxy'
      : `left to the proxy ${JSON.stringify(proxyName)}`
  if (headless === 'whole') return 'headless without ports, and this proxy translates ports'
  const refused = refusals.find(({ field }) => /^spec\.(clusterIP|ports)/.test(field))
  if (refused !== undefined)
    return `${refused.field} ${refused.value} is ${refused.reason.replace(/;.*/s, '')}`
  return clusterIps.length === 0 ? 'headless' : 'no usable port or address'
}

function nodePortLine(table: FrontendTable): string {
  const text = nodePortText(table)
  return `NodePorts answer on: ${text === '' ? 'no address of this node' : text}\n`
}
