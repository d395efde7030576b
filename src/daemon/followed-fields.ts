import type { Log } from '../base/log.ts'
import type { Config } from '../config/config.ts'
import { type ConfigChanges, type FieldChange, needsRestart } from '../config/config-changes.ts'
import { findMode } from '../modes/registry.ts'

/* What has to be done anew when a field of a followed configuration changes. */

/** Fields that settings of the kernel follow from. */
const TUNING_FIELDS: readonly (keyof Config)[] = ['conntrack', 'proxyMode', 'nodePortAddresses']

/** Fields that a plane and its reconciler are made from. */
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

/** Those, and the ones that only this mode follows from. */
export function tuningFields({ proxyMode }: Config): readonly (keyof Config)[] {
  return [...TUNING_FIELDS, ...(findMode(proxyMode).fields ?? [])]
}

/** Those, and the ones that only this mode follows from. */
export function programmingFields({ proxyMode }: Config): readonly (keyof Config)[] {
  return [...PROGRAMMING_FIELDS, ...(findMode(proxyMode).fields ?? [])]
}

/** Says of each field whether its change is applied now. */
export function logFieldChanges(log: Log, changes: ConfigChanges, fields: readonly FieldChange[]): void {
  for (const { field, from, to } of fields) {
    if (needsRestart(changes, field))
      log.warn({ field, from, to }, 'configuration field changed; takes effect after a restart')
    else log.info({ field, from, to }, 'configuration field changed')
  }
}
