import { isSame } from '../model/equal.ts'
import { MODE_NAMES } from '../modes/registry.ts'
import type { Config } from './config.ts'
import { FIELD_PATHS, type FieldPath } from './fields.ts'
import type { Settings } from './settings.ts'
import { printedValue } from './written-config.ts'

/** How a field that differs is applied to a daemon that runs. */
type Application =
  /** The next pass, line or timer uses the new value. */
  | 'live'
  /** The part that the field belongs to is closed and opened again; Services are not touched. */
  | 'restart'
  /** Only a new process: who is asked, what is owned in the kernel, or what is done once at the start. */
  | 'process'

/** A field that is missing here does not compile. */
const APPLICATIONS: Readonly<Record<keyof Config, Application>> = {
  // The plane of the new mode takes over from that of the old one.
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
  // It decides which family comes first, and with it every choice of a primary address.
  bindAddress: 'process',
  healthzBindAddress: 'restart',
  metricsBindAddress: 'restart',
  bindAddressHardFail: 'restart',
  oomScoreAdj: 'live',
  conntrack: 'live',
  ipvs: 'live',
  iptables: 'live',
  allowServiceExternalIps: 'live',
  // What is asked for at the start alone; the gate of externalIPs has a field of its own.
  featureGates: 'process',
  adminSocket: 'restart',
  // The metrics are made once; the table in the kernel would have to be made anew.
  connectionMetricsMax: 'process',
  // The fields that it publishes are read from the start, or not at all.
  api: 'process',
}

/** Names of fields that differ, by what it takes to apply them. */
export type ConfigChanges = Readonly<Record<Application, readonly (keyof Config)[]>>

export function configChanges(before: Config, after: Config): ConfigChanges {
  const modes = [before.proxyMode, after.proxyMode]
  // A field with the name of a mode is what that mode alone has.
  const matters = (field: keyof Config) => !MODE_NAMES.includes(field) || modes.includes(field)
  const changed = FIELDS.filter(field => matters(field) && !isSame(before[field], after[field]))
  const those = (application: Application) => changed.filter(field => APPLICATIONS[field] === application)
  return { live: those('live'), restart: those('restart'), process: those('process') }
}

function isField(name: string): name is keyof Config {
  return Object.hasOwn(APPLICATIONS, name)
}

const FIELDS: readonly (keyof Config)[] = Object.keys(APPLICATIONS).filter(isField)

/** One field of the file that a new text changes, by its name there. */
export interface FieldChange {
  readonly field: FieldPath
  /** The value as a file would have it; defaults included. */
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
