import type { Mode, ModeSettings } from '../mode.ts'
import { cleanNftables } from './cleanup.ts'
import { nftablesFeatures } from './doctor.ts'
import { nftablesTracer, openNftables, retireNftables } from './open.ts'
import { proxyOfTable, tableNameOf } from './options.ts'
import { nftablesHeld } from './show.ts'

const NFTABLES_SETTINGS: ModeSettings = {
  masqueradeAll: 'nftables.masqueradeAll',
  masqueradeBit: 'nftables.masqueradeBit',
  minSyncPeriod: 'nftables.minSyncPeriod',
  syncPeriod: 'nftables.syncPeriod',
  periodFlags: { min: 'iptables-min-sync-period', sync: 'iptables-sync-period' },
  defaultSyncPeriod: 600_000_000_000n,
  countsConnections: true,
}

export const nftables: Mode = {
  name: 'nftables',
  title: 'nftables',
  settings: NFTABLES_SETTINGS,
  kernelPart: 'nf_tables',
  open: (context, use) => use(openNftables(context)),
  retire: retireNftables,
  trace: nftablesTracer,
  held: nftablesHeld,
  features: nftablesFeatures,
  needsFeature: () => true,
  cleanup: cleanNftables,
  // Measured at 100 to 1,000 ports of one Service: docs/decisions/0022-shares.md.
  costs: { frontend: 1_280, sliceEndpoint: 320, endpoint: 320, perFrontend: false },
  tableName: tableNameOf,
  proxyOfTable,
  isProvable: true,
}
