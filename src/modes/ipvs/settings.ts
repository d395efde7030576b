import { formatCidr } from '../../base/cidr.ts'
import { OWN_IPVS_FLAGS } from '../../config/ipvs-flags.ts'
import type { ModeSettings } from '../mode.ts'

export const IPVS_SETTINGS: ModeSettings = {
  // As in kube-proxy's conversion from v1alpha1, this mode reads the settings of masquerading from the section `iptables`.
  masqueradeAll: 'iptables.masqueradeAll',
  masqueradeBit: 'iptables.masqueradeBit',
  minSyncPeriod: 'ipvs.minSyncPeriod',
  syncPeriod: 'ipvs.syncPeriod',
  periodFlags: { min: 'ipvs-min-sync-period', sync: 'ipvs-sync-period' },
  // IPVS reports no changes: beside the digests, a full resync is what finds them.
  defaultSyncPeriod: 30_000_000_000n,
  notNegative: ['ipvs.tcpFinTimeout', 'ipvs.tcpTimeout', 'ipvs.udpTimeout'],
  countsConnections: true,
  ownFlags: OWN_IPVS_FLAGS,
  flagTexts: ({ ipvs }) => ({
    'ipvs-scheduler': ipvs.scheduler,
    'ipvs-exclude-cidrs': ipvs.excludeCidrs.map(formatCidr).join(),
    'ipvs-strict-arp': `${ipvs.strictArp}`,
    'ipvs-tcp-timeout': `${ipvs.tcpTimeoutS}s`,
    'ipvs-tcpfin-timeout': `${ipvs.tcpFinTimeoutS}s`,
    'ipvs-udp-timeout': `${ipvs.udpTimeoutS}s`,
    'ipvs-rules': ipvs.rules,
    'ipvs-drain-timeout': `${ipvs.drainTimeoutMs}ms`,
    'ipvs-digest-period': `${ipvs.digestPeriodMs}ms`,
  }),
}
