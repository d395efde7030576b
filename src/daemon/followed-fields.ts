import type { Log } from '../base/log.ts'
import type { Config } from '../config/config.ts'
import { type ConfigChanges, type FieldChange, needsRestart } from '../config/config-changes.ts'
import { findMode } from '../modes/registry.ts'

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
