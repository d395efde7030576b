import { IPTABLES_SECTION } from '../common/iptables-section.ts'
import type { Mode, ModeSettings } from '../mode.ts'
import { cleanUserspace } from './cleanup.ts'
import { openUserspace, retireUserspace, userspaceTracer } from './open.ts'
import { proxyOfTable, tableNameOf } from './options.ts'
import { userspaceHeld } from './show.ts'

const USERSPACE_SETTINGS: ModeSettings = {
  // kube-proxy's userspace mode, while there was one, had no section of its own either.
  ...IPTABLES_SECTION,
  defaultSyncPeriod: 600_000_000_000n,
  everyAddress: true,
}

export const userspace: Mode = {
  name: 'userspace',
  title: 'userspace',
  purpose: 'a relay for debugging',
  settings: USERSPACE_SETTINGS,
  kernelPart: 'nf_tables',
  open: (context, use) => use(openUserspace(context)),
  retire: retireUserspace,
  trace: userspaceTracer,
  held: userspaceHeld,
  // The process itself balances connections and remembers clients, and endpoints see its address.
  needsFeature: kind => kind !== 'numgen' && kind !== 'masquerade' && kind !== 'dynamic',
  cleanup: cleanUserspace,
  // Estimated: docs/decisions/0022-shares.md.
  costs: { frontend: 4_096, sliceEndpoint: 320, endpoint: 320, perFrontend: false },
  // The relay listens on one of them.
  needsAddresses: true,
  relays: true,
  tableName: tableNameOf,
  proxyOfTable,
}
