import { LOG_FLAG, logFlagText } from '../common/logs.ts'
import type { ModeSettings } from '../mode.ts'

export const NFTABLES_SETTINGS: ModeSettings = {
  masqueradeAll: 'nftables.masqueradeAll',
  masqueradeBit: 'nftables.masqueradeBit',
  minSyncPeriod: 'nftables.minSyncPeriod',
  syncPeriod: 'nftables.syncPeriod',
  periodFlags: { min: 'iptables-min-sync-period', sync: 'iptables-sync-period' },
  defaultSyncPeriod: 600_000_000_000n,
  countsConnections: true,
  ownFlags: [LOG_FLAG],
  flagTexts: logFlagText,
}
