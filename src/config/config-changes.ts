import type { Log } from '../base/log.ts'
import { isSame } from '../base/plain-data.ts'
import type { Config } from './config.ts'
import { FIELD_PATHS, type FieldPath, fieldAt } from './fields.ts'
import { MODE_NAMES, rowOf } from './modes.ts'
import type { Settings } from './settings.ts'
import { printedValue } from './written-config.ts'

/** The way to apply a changed field to a running daemon. */
type Application =
  /** The next pass, line or timer uses the new value. */
  | 'live'
  /** The part of the daemon that uses the field is closed and opened again; Services are not affected. */
  | 'restart'
  /** A new value needs a new process: it selects the source, names kernel objects, or matters only at the start. */
  | 'process'

/** A part of the daemon that follows from a field. Rows of modes name more fields. */
type Part = 'plane' | 'sysctls'

/** The application of each member of Config, and the parts that follow from it. A missing member is a compile error. */
const APPLICATIONS: Readonly<Record<keyof Config, readonly [Application, ...Part[]]>> = {
  // The data plane of the new mode takes over from that of the old one.
  proxyMode: ['live', 'plane', 'sysctls'],
  backend: ['process'],
  source: ['process'],
  once: ['process'],
  nodeName: ['process'],
  serviceProxyName: ['process'],
  detectLocal: ['live', 'plane'],
  masqueradeAll: ['live', 'plane'],
  // Packets in flight carry the mark, and other programs know it.
  masqueradeBit: ['process'],
  nodePortAddresses: ['live', 'plane', 'sysctls'],
  minSyncPeriodMs: ['live', 'plane'],
  syncShare: ['live', 'plane'],
  syncPeriodMs: ['live', 'plane'],
  logFormat: ['live'],
  verbosity: ['live'],
  allowedExternalCidrs: ['live', 'plane'],
  allowedLoadBalancerCidrs: ['live', 'plane'],
  client: ['restart'],
  // The address selects the primary family, and with it every primary address.
  bindAddress: ['process'],
  healthzBindAddress: ['restart'],
  metricsBindAddress: ['restart'],
  bindAddressHardFail: ['restart'],
  oomScoreAdj: ['live'],
  conntrack: ['live', 'sysctls'],
  ipvs: ['live'],
  iptables: ['live'],
  logRejects: ['live'],
  allowServiceExternalIps: ['live', 'plane'],
  // Gates matter only at the start; the gate of externalIPs has a field of its own.
  featureGates: ['process'],
  // The condition of the former type would stay at the Node as it was.
  nodeCondition: ['process'],
  // A proof that began is kept from sync to sync.
  prove: ['process'],
  balance: ['live', 'plane'],
  // The state of the first start is read there, and a file that is not written any more would grow old.
  stateDir: ['process'],
  // The metrics are created once, and the kernel's table would have to be created again.
  connectionMetricsMax: ['process'],
  // The source keeps the fields that the API publishes from the start, or not at all.
  api: ['process'],
  // Their sockets are opened once. Both are flags without a field of the file.
  adminSocket: ['process'],
  ui: ['process'],
}

type ConfigChanges = Readonly<Record<Application, readonly (keyof Config)[]>>

export function configChanges(before: Config, after: Config): ConfigChanges {
  const modes = [before.proxyMode, after.proxyMode]
  // A field with the name of a mode matters only in that mode.
  const matters = (field: keyof Config) => !MODE_NAMES.includes(field) || modes.includes(field)
  const changed = MEMBERS.filter(field => matters(field) && !isSame(before[field], after[field]))
  const those = (application: Application) => changed.filter(field => APPLICATIONS[field][0] === application)
  return { live: those('live'), restart: those('restart'), process: those('process') }
}

function isField(name: string): name is keyof Config {
  return Object.hasOwn(APPLICATIONS, name)
}

const MEMBERS: readonly (keyof Config)[] = Object.keys(APPLICATIONS).filter(isField)

/** One field of the configuration file that differs, by its name there. */
export interface FieldChange {
  readonly field: FieldPath
  readonly from: unknown
  readonly to: unknown
}

export function fieldChanges(before: Settings, after: Settings): readonly FieldChange[] {
  return FIELD_PATHS.flatMap(field => {
    const [from, to] = [before, after].map(settings => printedValue(settings, field))
    return isSame(from, to) ? [] : [{ field, from, to }]
  })
}

export function needsRestart({ process }: ConfigChanges, field: FieldPath): boolean {
  const { sets } = fieldAt(field)
  return sets !== undefined && process.includes(sets)
}

export function tuningFields(config: Config): readonly (keyof Config)[] {
  return fieldsOf('sysctls', config)
}

export function programmingFields(config: Config): readonly (keyof Config)[] {
  return fieldsOf('plane', config)
}

function fieldsOf(part: Part, { proxyMode }: Config): readonly (keyof Config)[] {
  const inAllModes = MEMBERS.filter(field => APPLICATIONS[field].some(each => each === part))
  return [...inAllModes, ...(rowOf(proxyMode).fields ?? [])]
}

export function logFieldChanges(log: Log, changes: ConfigChanges, fields: readonly FieldChange[]): void {
  for (const { field, from, to } of fields) {
    if (needsRestart(changes, field))
      log.warn({ field, from, to }, 'configuration field changed; takes effect after a restart')
    else log.info({ field, from, to }, 'configuration field changed')
  }
}
