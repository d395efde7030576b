import type { Config } from '../config/config.ts'

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
