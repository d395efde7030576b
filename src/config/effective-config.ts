import type { Clock } from '../base/clock.ts'
import { formatGoDuration } from '../base/duration.ts'
import { FollowedText, type ReadResult } from '../base/followed-text.ts'
import type { Log } from '../base/log.ts'
import { isSame } from '../model/fields.ts'
import type { Config } from './config.ts'
import { API_VERSION, ConfigFileError, KIND, readConfigFileAgain } from './config-document.ts'
import { FIELD_PATHS, type FieldPath, type FieldValue, fieldAt, type VmoduleItem } from './fields.ts'
import type { ConfigError } from './flag.ts'
import type { ConfigFile, Parsed } from './load-config.ts'
import type { ModeFields } from './modes/mode-row.ts'
import { MODE_NAMES, rowOf } from './modes.ts'
import { isList, type Settings } from './settings.ts'
import { modeSettingsOf } from './settings-from-flags.ts'

/** The way to apply a changed field to a running daemon. */
type Application =
  /** The next pass, line or timer uses the new value. */
  | 'live'
  /** The part of the daemon that uses the field is closed and opened again; Services are not affected. */
  | 'restart'
  /** A new value needs a new process: it selects the source, names kernel objects, or matters only at the start. */
  | 'process'

/** A missing field is a compile error. */
const APPLICATIONS: Readonly<Record<keyof Config, Application>> = {
  // The data plane of the new mode takes over from that of the old one.
  proxyMode: 'live',
  backend: 'process',
  source: 'process',
  once: 'process',
  nodeName: 'process',
  serviceProxyName: 'process',
  detectLocal: 'live',
  masqueradeAll: 'live',
  // Packets in flight carry the mark, and other programs know it.
  masqueradeBit: 'process',
  nodePortAddresses: 'live',
  minSyncPeriodMs: 'live',
  syncPeriodMs: 'live',
  logFormat: 'live',
  verbosity: 'live',
  allowedExternalCidrs: 'live',
  allowedLoadBalancerCidrs: 'live',
  client: 'restart',
  // The address selects the primary family, and with it every primary address.
  bindAddress: 'process',
  healthzBindAddress: 'restart',
  metricsBindAddress: 'restart',
  bindAddressHardFail: 'restart',
  oomScoreAdj: 'live',
  conntrack: 'live',
  ipvs: 'live',
  iptables: 'live',
  logRejects: 'live',
  allowServiceExternalIps: 'live',
  // Gates matter only at the start; the gate of externalIPs has a field of its own.
  featureGates: 'process',
  // The condition of the former type would stay at the Node as it was.
  nodeCondition: 'process',
  // A proof that began is kept from sync to sync.
  prove: 'process',
  // The state of the first start is read there, and a file that is not written any more would grow old.
  stateDir: 'process',
  // The metrics are created once, and the kernel's table would have to be created again.
  connectionMetricsMax: 'process',
  // The source keeps the fields that the API publishes from the start, or not at all.
  api: 'process',
  // Flags alone set these.
  adminSocket: 'process',
  ui: 'process',
}

/** Names of changed fields, by the way to apply them. */
type ConfigChanges = Readonly<Record<Application, readonly (keyof Config)[]>>

export function configChanges(before: Config, after: Config): ConfigChanges {
  const modes = [before.proxyMode, after.proxyMode]
  // A field with the name of a mode matters only in that mode.
  const matters = (field: keyof Config) => !MODE_NAMES.includes(field) || modes.includes(field)
  const changed = FIELDS.filter(field => matters(field) && !isSame(before[field], after[field]))
  const those = (application: Application) => changed.filter(field => APPLICATIONS[field] === application)
  return { live: those('live'), restart: those('restart'), process: those('process') }
}

function isField(name: string): name is keyof Config {
  return Object.hasOwn(APPLICATIONS, name)
}

const FIELDS: readonly (keyof Config)[] = Object.keys(APPLICATIONS).filter(isField)

/** One field of the configuration file that differs, by its name there. */
export interface FieldChange {
  readonly field: FieldPath
  /** The value as a file would have it, or the default. */
  readonly from: unknown
  readonly to: unknown
}

export function fieldChanges(before: Settings, after: Settings): readonly FieldChange[] {
  return FIELD_PATHS.flatMap(field => {
    const [from, to] = [before, after].map(settings => printedValue(settings, field))
    return isSame(from, to) ? [] : [{ field, from, to }]
  })
}

/** Fields of the file that only a new process reads. */
const RESTART_FIELDS: Readonly<Partial<Record<FieldPath, keyof Config>>> = {
  hostnameOverride: 'nodeName',
  'iptables.masqueradeBit': 'masqueradeBit',
  'nftables.masqueradeBit': 'masqueradeBit',
  bindAddress: 'bindAddress',
  featureGates: 'featureGates',
  stateDir: 'stateDir',
  nodeCondition: 'nodeCondition',
  prove: 'prove',
}

export function needsRestart({ process }: ConfigChanges, field: FieldPath): boolean {
  const target = RESTART_FIELDS[field]
  return target !== undefined && process.includes(target)
}

/** Handlers for changes of the configuration file in use. */
interface ConfigWatchHandlers<T> {
  /** The file has a new and valid configuration. The next read waits until this has resolved. */
  readonly changed: (value: T) => Promise<void> | void
  /** The configuration in use stays. Reported once for each error of the file. */
  readonly failed: (errors: readonly ConfigError[]) => void
  /** Called after failed: the file is valid again, and equals the configuration in use. */
  readonly recovered: () => void
  /** Called after hurry: the file is valid, and equals the configuration in use. */
  readonly unchanged: () => void
}

interface ConfigWatchOptions<T> {
  /** The file as read for the configuration in use. */
  readonly file: ConfigFile
  readonly clock: Clock
  /** Reads a new text, for example with parseRequest. */
  readonly parse: (file: ConfigFile) => Parsed<T>
  readonly handlers: ConfigWatchHandlers<T>
}

export type ConfigWatch = Pick<FollowedText<readonly ConfigError[]>, 'hurry' | 'stop'>

/** Interval of the reads. The file is small: reading it costs less than watching all links that lead to it. */
const POLL_MS = 500

/** Follows a configuration file. A missing or invalid file is reported once and changes nothing. */
export function watchConfig<T>({ file, clock, parse, handlers }: ConfigWatchOptions<T>): ConfigWatch {
  const { path, text } = file
  return new FollowedText<readonly ConfigError[]>({
    clock,
    pollMs: POLL_MS,
    text,
    read: () => read(path),
    use: async now => {
      const parsed = parse({ path, text: now })
      if (parsed.kind === 'errors') return parsed.errors
      await handlers.changed(parsed.value)
      return undefined
    },
    failed: handlers.failed,
    recovered: handlers.recovered,
    unchanged: handlers.unchanged,
  })
}

async function read(path: string): Promise<ReadResult<readonly ConfigError[]>> {
  try {
    return { text: await readConfigFileAgain(path) }
  } catch (error) {
    if (error instanceof ConfigFileError) return { error: [{ path, message: error.message }] }
    throw error
  }
}

/* Parts of the daemon that depend on fields of the configuration, which may change at run time. */

/** Fields that kernel settings depend on. */
const TUNING_FIELDS: readonly (keyof Config)[] = ['conntrack', 'proxyMode', 'nodePortAddresses']

/** Fields that a data plane and its reconciler depend on. */
const PROGRAMMING_FIELDS: readonly (keyof Config)[] = [
  'proxyMode',
  'detectLocal',
  'masqueradeAll',
  'nodePortAddresses',
  'minSyncPeriodMs',
  'syncPeriodMs',
  'allowedExternalCidrs',
  'allowedLoadBalancerCidrs',
  'allowServiceExternalIps',
]

/** TUNING_FIELDS and those of the mode. */
export function tuningFields({ proxyMode }: Config): readonly (keyof Config)[] {
  return [...TUNING_FIELDS, ...(rowOf(proxyMode).fields ?? [])]
}

/** PROGRAMMING_FIELDS and those of the mode. */
export function programmingFields({ proxyMode }: Config): readonly (keyof Config)[] {
  return [...PROGRAMMING_FIELDS, ...(rowOf(proxyMode).fields ?? [])]
}

/** Logs of each field whether its change is applied now. */
export function logFieldChanges(log: Log, changes: ConfigChanges, fields: readonly FieldChange[]): void {
  for (const { field, from, to } of fields) {
    if (needsRestart(changes, field))
      log.warn({ field, from, to }, 'configuration field changed; takes effect after a restart')
    else log.info({ field, from, to }, 'configuration field changed')
  }
}

/** Formats the effective configuration byte for byte as kube-proxy 1.36 writes it to the file of --write-config-to. */
export function writtenConfig(settings: Settings): string {
  return goYaml(publishedConfig(settings))
}

/** Gives the effective configuration as plain data, as kube-proxy serves it at /configz. */
export function publishedConfig(settings: Settings): YamlMapping {
  const leaves = FIELD_PATHS.flatMap(path => {
    const value = isLeftOut(path, modeSettingsOf(settings))
      ? ZEROS[fieldAt(path).kind]
      : writtenValue(settings, path)
    return value === undefined ? [] : [{ names: path.split('.'), value }]
  })
  return nest([{ names: ['apiVersion'], value: API_VERSION }, { names: ['kind'], value: KIND }, ...leaves])
}

/**
 * Fields that kube-proxy writes only to the section of the mode, because it keeps one set of periods and one
 * masqueradeAll. It does not keep portRange at all.
 */
const OF_ONE_MODE: ReadonlySet<FieldPath> = new Set([
  'iptables.masqueradeAll',
  'iptables.minSyncPeriod',
  'iptables.syncPeriod',
  'ipvs.minSyncPeriod',
  'ipvs.syncPeriod',
  'nftables.masqueradeAll',
  'nftables.minSyncPeriod',
  'nftables.syncPeriod',
])

function isLeftOut(path: FieldPath, of: ModeFields): boolean {
  if (!OF_ONE_MODE.has(path)) return path === 'portRange'
  return path !== of.masqueradeAll && path !== of.minSyncPeriod && path !== of.syncPeriod
}

/** Gives a value; undefined if the field is omitted when empty. */
function writtenValue(settings: Settings, path: FieldPath): YamlValue | undefined {
  const { kind, omitEmpty } = fieldAt(path)
  const value = settings.value(path)
  if (
    omitEmpty === true &&
    (value === undefined || value === false || value === '' || value === 0n || isEmpty(value))
  )
    return undefined
  if (value === undefined) return ZEROS[kind]
  return typeof value === 'bigint' ? formatGoDuration(value) : plainValue(value)
}

function printedValue(settings: Settings, path: FieldPath): YamlValue {
  return writtenValue(settings, path) ?? ZEROS[fieldAt(path).kind]
}

function isEmpty(value: FieldValue): boolean {
  return typeof value === 'object' && Object.keys(value).length === 0
}

function plainValue(value: Exclude<FieldValue, bigint>): YamlValue {
  if (typeof value !== 'object') return value
  if (!isList(value)) return { ...value }
  const items: readonly (string | VmoduleItem)[] = value
  return items.map(item => (typeof item === 'string' ? item : { ...item }))
}

const ZEROS = {
  text: '',
  switch: '',
  bool: false,
  int32: 0,
  uint32: 0,
  float: 0,
  duration: '0s',
  flush: '0s',
  quantity: '0',
  texts: null,
  gates: null,
  vmodule: null,
} as const

interface Leaf {
  readonly names: readonly string[]
  readonly value: YamlValue
}

function nest(leaves: readonly Leaf[]): YamlMapping {
  const groups = new Map<string, Leaf[]>()
  for (const { names, value } of leaves) {
    const [name = '', ...rest] = names
    const group = groups.get(name) ?? []
    groups.set(name, group)
    group.push({ names: rest, value })
  }
  const entries = [...groups].map(([name, group]): [string, YamlValue] => {
    const [first] = group
    return [name, first?.names.length === 0 ? first.value : nest(group)]
  })
  return Object.fromEntries(entries)
}

type YamlValue = string | number | boolean | null | readonly YamlValue[] | YamlMapping
interface YamlMapping {
  readonly [name: string]: YamlValue
}

/** Writes plain data as Go's YAML library does: names in order, lists not indented, quotes only where needed. */
export function goYaml(value: YamlMapping): string {
  return `${mappingLines(value).join('\n')}\n`
}

function mappingLines(mapping: YamlMapping): readonly string[] {
  return Object.entries(mapping)
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .flatMap(([name, value]) => {
      if (isYamlList(value) && value.length > 0) return [`${scalar(name)}:`, ...value.flatMap(itemLines)]
      if (isMapping(value) && Object.keys(value).length > 0)
        return [`${scalar(name)}:`, ...indented(mappingLines(value))]
      return [`${scalar(name)}: ${inline(value)}`]
    })
}

function itemLines(item: YamlValue): readonly string[] {
  const lines = isMapping(item) && Object.keys(item).length > 0 ? mappingLines(item) : [inline(item)]
  return lines.map((line, index) => (index === 0 ? `- ${line}` : `  ${line}`))
}

function indented(lines: readonly string[]): readonly string[] {
  return lines.map(line => `  ${line}`)
}

function inline(value: YamlValue): string {
  if (isYamlList(value)) return '[]'
  if (isMapping(value)) return '{}'
  return typeof value === 'string' ? scalar(value) : String(value)
}

function isYamlList(value: YamlValue): value is readonly YamlValue[] {
  return Array.isArray(value)
}

function isMapping(value: YamlValue): value is YamlMapping {
  return typeof value === 'object' && value !== null && !isYamlList(value)
}

/** Plain texts with another meaning in YAML 1.1: null, booleans, numbers, dates, a merge. */
const AMBIGUOUS =
  /^(|~|null|Null|NULL|<<|[yYnN]|yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)|[-+]?(\.\d+|\d[\d_]*(\.\d*)?)([eE][-+]?\d+)?|[-+]?0[xX][\da-fA-F_]+|[-+]?0b[01_]+|[-+]?0o[0-7_]+|\d{4}-\d\d?-\d\d?([Tt ].*)?|[-+]?\d[\d_]*(:[0-5]?\d)+(\.[\d_]*)?)$/

/** Texts that are invalid as a plain scalar. */
const NOT_PLAIN = /^[#,[\]{}&*!|>'"%@`]|^(---|\.\.\.)|^[-?:]( |$)|: |:$| #|^ | $/

function scalar(text: string): string {
  if (AMBIGUOUS.test(text) || /[^\x20-\x7e\xa0-\ud7ff\ue000-\ufffd]/.test(text)) return JSON.stringify(text)
  return NOT_PLAIN.test(text) ? `'${text.replaceAll("'", "''")}'` : text
}
