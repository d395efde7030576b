import type { Clock } from '../base/clock.ts'
import { FollowedText, type ReadResult } from '../base/followed-text.ts'
import type { Log } from '../base/log.ts'
import { isSame } from '../model/fields.ts'
import { findMode, MODE_NAMES } from '../modes/registry.ts'
import type { Config } from './config.ts'
import { ConfigFileError, readConfigFileAgain } from './config-document.ts'
import { FIELD_PATHS, type FieldPath } from './fields.ts'
import type { ConfigError } from './flag.ts'
import type { ConfigFile, Parsed } from './load-config.ts'
import type { Settings } from './settings.ts'
import { printedValue } from './written-config.ts'

/** The way to apply a changed field to a running daemon. */
type Application =
  /** The next pass, line or timer uses the new value. */
  | 'live'
  /** The part of the daemon that uses the field is closed and opened again; Services are not affected. */
  | 'restart'
  /**
   * Only a new process uses the new value: it selects the source, names kernel objects, or matters only at the start.
   */
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
  adminSocket: 'restart',
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
  // Flags alone set it.
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
  return [...TUNING_FIELDS, ...(findMode(proxyMode).fields ?? [])]
}

/** PROGRAMMING_FIELDS and those of the mode. */
export function programmingFields({ proxyMode }: Config): readonly (keyof Config)[] {
  return [...PROGRAMMING_FIELDS, ...(findMode(proxyMode).fields ?? [])]
}

/** Logs of each field whether its change is applied now. */
export function logFieldChanges(log: Log, changes: ConfigChanges, fields: readonly FieldChange[]): void {
  for (const { field, from, to } of fields) {
    if (needsRestart(changes, field))
      log.warn({ field, from, to }, 'configuration field changed; takes effect after a restart')
    else log.info({ field, from, to }, 'configuration field changed')
  }
}
