import { tableNameOf, USERSPACE } from '../../config/modes/userspace.ts'
import { createNftClient } from '../../kernel/nft/client.ts'
import { limitsWithin } from '../common/forwarder/context.ts'
import { forwarderMetrics } from '../common/forwarder/forwarder-set.ts'
import { elementExtent } from '../common/tables.ts'
import { bothNamed, deleteTables, retireTables, withNftClient } from '../common/writers.ts'
import type { Mode, ModeContext, OpenPlane } from '../mode.ts'
import { isOurs, UserspacePlane } from './plane.ts'
import { userspaceOptions } from './settings.ts'
import { userspaceHeld } from './show.ts'
import { REDIRECT_MAPS, type UserspacePlan, type UserspaceState } from './state.ts'
import { tracedUserspaceConfig } from './traced.ts'

export const userspace: Mode = {
  ...USERSPACE,
  kernelPart: 'nf_tables',
  open: (context, use) => use(openUserspace(context)),
  retire: (context, signal) =>
    retireTables(context, signal, { name: tableNameOf(context.config.serviceProxyName), isOurs }),
  traced: tracedUserspaceConfig,
  held: userspaceHeld,
  // The process itself balances connections and remembers clients, and endpoints see its address.
  needsFeature: kind =>
    kind !== 'numgen' && kind !== 'jhash' && kind !== 'masquerade' && kind !== 'dynamic' && kind !== 'log',
  async cleanup(context) {
    const tables = bothNamed(tableNameOf(context.proxy))
    const removed = await withNftClient(context, client => deleteTables(client, tables, isOurs, 'clean up'))
    return { removed: removed.map(table => `table ${table}`), foreign: [] }
  },
  // Estimated: docs/decisions/0022-shares.md.
  costs: { frontend: 4_096, sliceEndpoint: 320, endpoint: 320, perFrontend: false },
  // The forwarder listens on one of them.
  needsAddresses: true,
}

const COSTS =
  "userspace mode: this process relays every connection; endpoints see its address instead of the client's, and connections end with it; use it for debugging, or if the kernel supports no other mode"

/** Opens userspace mode. Throws when nf_tables of this kernel cannot be reached. */
export function openUserspace({
  config,
  clock,
  sockets,
  tell,
}: ModeContext): OpenPlane<UserspaceState, UserspacePlan> {
  const transport = sockets.netfilter()
  const client = createNftClient({ transport, clock })
  const limits = limitsWithin(sockets.room?.())
  const options = { ...userspaceOptions(config), limits }
  const plane = new UserspacePlane({
    client,
    clock,
    options,
    writers: { openTransport: sockets.netfilter, own: transport.portId },
    report: tell,
  })
  return {
    plane,
    start() {
      const { connections, sessions } = limits
      tell?.({ kind: 'notice', level: 'warn', text: COSTS, facts: { connections, sessions } })
      plane.startForwarding()
    },
    // The kernel does not hold the endpoints of this mode.
    extent: ({ ruleset }) =>
      elementExtent(
        ruleset,
        set => REDIRECT_MAPS.has(set),
        () => false,
      ),
    unsupported: ({ refusals }) => [...refusals.values()].flat(),
    metrics: () => Promise.resolve(forwarderMetrics(plane.counts)),
    async close() {
      plane.release()
      await client.close()
    },
  }
}
