import type { Log } from '../base/log.ts'
import type { Config } from '../config/config.ts'
import { type ConfigChanges, type FieldChange, needsRestart } from '../config/config-changes.ts'

/* What has to be done anew when a field of a followed configuration changes. */

/** Fields that settings of the kernel follow from. */
export const TUNING_FIELDS: readonly (keyof Config)[] = [
  'conntrack',
  'proxyMode',
  'ipvs',
  'iptables',
  'nodePortAddresses',
]

/** Fields that a plane and its reconciler are made from. */
const PROGRAMMING_FIELDS: readonly (keyof Config)[] = [
  'proxyMode',
  'ipvs',
  'iptables',
  'detectLocal',
  'masqueradeAll',
  'nodePortAddresses',
  'minSyncPeriodMs',
  'syncPeriodMs',
  'allowedExternalCidrs',
  'allowedLoadBalancerCidrs',
  'allowServiceExternalIps',
]

/** Those of the mode: a rule of iptables follows from conntrack's tcpBeLiberal. */
export function programmingFields({ proxyMode }: Config): readonly (keyof Config)[] {
  return proxyMode === 'iptables' ? [...PROGRAMMING_FIELDS, 'conntrack'] : PROGRAMMING_FIELDS
}

/** Says of each field whether its change is applied now. */
export function logFieldChanges(log: Log, changes: ConfigChanges, fields: readonly FieldChange[]): void {
  for (const { field, from, to } of fields) {
    if (needsRestart(changes, field))
      log.warn({ field, from, to }, 'configuration field changed; takes effect after a restart')
    else log.info({ field, from, to }, 'configuration field changed')
  }
}
