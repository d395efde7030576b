import type { ModeFields } from './mode-row.ts'

export const IPTABLES_SECTION: ModeFields = {
  masqueradeAll: 'iptables.masqueradeAll',
  masqueradeBit: 'iptables.masqueradeBit',
  minSyncPeriod: 'iptables.minSyncPeriod',
  syncPeriod: 'iptables.syncPeriod',
}
