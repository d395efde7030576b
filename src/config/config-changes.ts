import { isSame } from '../model/equal.ts'
import { MODE_NAMES } from '../modes/registry.ts'
import type { Config } from './config.ts'
import { FIELD_PATHS, type FieldPath } from './fields.ts'
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
  allowServiceExternalIps: 'live',
  // Gates matter only at the start; the gate of externalIPs has a field of its own.
  featureGates: 'process',
  adminSocket: 'restart',
  // The metrics are created once, and the kernel's table would have to be created again.
  connectionMetricsMax: 'process',
  // The source keeps the fields that the API publishes from the start, or not at all.
  api: 'process',
}

/** Names of changed fields, by the way to apply them. */
export type ConfigChanges = Readonly<Record<Application, readonly (keyof Config)[]>>

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
}

export function needsRestart({ process }: ConfigChanges, field: FieldPath): boolean {
  const target = RESTART_FIELDS[field]
  return target !== undefined && process.includes(target)
}
