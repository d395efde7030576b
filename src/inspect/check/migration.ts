import { count, oneLine } from '../../base/text.ts'
import { type Io, tableText } from '../../cli/io.ts'
import type { RunRequest } from '../../config/load-config.ts'
import { rowOf } from '../../config/modes.ts'
import type { ServiceKey } from '../../model/service.ts'
import {
  KUBE_PROXY_DEFAULT_MODE,
  KUBE_PROXY_MODES,
  type KubeProxyMode,
  type MigrationChange,
  migrationChanges,
} from '../../modes/foreign/migration.ts'
import { type Loaded, withLoaded } from '../load.ts'

interface Migration {
  /** kube-proxy's mode by its configuration, and kprobe's with the same one. */
  readonly from: KubeProxyMode
  readonly to: string
  readonly changes: readonly MigrationChange[]
  /** The Services that may depend on a difference, sorted. */
  readonly services: readonly ServiceKey[]
}

/** Reads all objects, and compares what kube-proxy and kprobe make of them. Throws if they cannot be read. */
export async function readMigration(request: RunRequest, io: Io): Promise<Migration> {
  const from = kubeProxyModeOf(request)
  return await withLoaded({ config: request.config, daemon: undefined, notices: [] }, io, loaded =>
    migrationOf(from, request, loaded),
  )
}

/** Gives the mode that kube-proxy has with this configuration. */
function kubeProxyModeOf({ settings }: RunRequest): KubeProxyMode {
  if (settings.origin('mode') === undefined) return KUBE_PROXY_DEFAULT_MODE
  const text = settings.text('mode')
  const mode = KUBE_PROXY_MODES.find(each => each === text)
  if (mode === undefined)
    throw new Error(`--migrate: kube-proxy has no mode ${text}; give its own configuration`)
  return mode
}

function migrationOf(
  from: KubeProxyMode,
  { config, settings }: RunRequest,
  { snapshot, table, refusedObjects }: Loaded,
): Migration {
  const services = [...snapshot.services.values()].filter(
    ({ proxyName, type }) => proxyName === config.serviceProxyName && type !== 'ExternalName',
  )
  const refusals = [
    ...[...table.services.values()].flatMap(({ service, refusals: its }) =>
      its.map(refusal => ({ service, refusal })),
    ),
    ...refusedObjects.flatMap(refusal =>
      refusal.service === undefined ? [] : [{ service: refusal.service, refusal }],
    ),
  ]
  const isNodePortsWritten = settings.origin('nodePortAddresses') !== undefined
  const changes = migrationChanges({ from, config, isNodePortsWritten, services, refusals })
  const differing = changes.filter(({ weight }) => weight === 'differs').flatMap(each => each.services)
  return { from, to: config.proxyMode, changes, services: [...new Set(differing)].sort() }
}

const MARKS: Readonly<Record<MigrationChange['weight'], string>> = {
  differs: 'DIFFERS',
  once: 'once',
  note: 'note',
}
const NAMES_SHOWN = 5

export function migrationText(
  { from, to, changes, services }: Migration,
  { color }: Pick<Io, 'color'>,
): string {
  const rows = changes.map(each => [MARKS[each.weight], each.subject, meaningOf(each)])
  const verdict =
    services.length === 0
      ? 'no Service depends on a difference'
      : `${count(services.length, 'Service')} may depend on a difference: change the configuration as listed, or accept the difference`
  const heading = `\nfrom kube-proxy in ${rowOf(from).title} mode to kprobe in ${rowOf(to).title} mode\n`
  return `${heading}${tableText(['', 'SUBJECT', 'CHANGE'], rows, { color, widest: 48 })}${verdict}\n`
}

function meaningOf({ text, services }: MigrationChange): string {
  const names = services.slice(0, NAMES_SHOWN).map(oneLine).join(', ')
  const more = services.length > NAMES_SHOWN ? ` and ${services.length - NAMES_SHOWN} more` : ''
  return services.length === 0 ? text : `${text} (${names}${more})`
}
