import type { ModeFields } from './mode-row.ts'

/** The section `iptables` of a configuration file, and its flags. */
export const IPTABLES_SECTION: ModeFields = {
  masqueradeAll: 'iptables.masqueradeAll',
  masqueradeBit: 'iptables.masqueradeBit',
  minSyncPeriod: 'iptables.minSyncPeriod',
  syncPeriod: 'iptables.syncPeriod',
  periodFlags: { min: 'iptables-min-sync-period', sync: 'iptables-sync-period' },
}
