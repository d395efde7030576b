import type { ModeFields } from './mode-row.ts'

/** The section `iptables` of a configuration file. */
export const IPTABLES_SECTION: ModeFields = {
  masqueradeAll: 'iptables.masqueradeAll',
  masqueradeBit: 'iptables.masqueradeBit',
  minSyncPeriod: 'iptables.minSyncPeriod',
  syncPeriod: 'iptables.syncPeriod',
}
