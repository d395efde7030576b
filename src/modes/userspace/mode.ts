import type { Mode } from '../mode.ts'
import { cleanUserspace, retireUserspace } from './cleanup.ts'
import { openUserspace } from './open.ts'
import { proxyOfTable, tableNameOf, USERSPACE_SETTINGS } from './settings.ts'
import { userspaceHeld } from './show.ts'
import { userspaceTracer } from './trace.ts'

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
  needsFeature: kind => kind !== 'numgen' && kind !== 'masquerade' && kind !== 'dynamic' && kind !== 'log',
  cleanup: cleanUserspace,
  // Estimated: docs/decisions/0022-shares.md.
  costs: { frontend: 4_096, sliceEndpoint: 320, endpoint: 320, perFrontend: false },
  // The relay listens on one of them.
  needsAddresses: true,
  relays: true,
  tableName: tableNameOf,
  proxyOfTable,
}
