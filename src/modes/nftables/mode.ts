import { finish } from '../../base/clock.ts'
import { type Config, GATE_LOCALHOST } from '../../config/config.ts'
import { mayForward, NFTABLES, tableNameOf } from '../../config/modes/nftables.ts'
import { createNftClient } from '../../kernel/nft/client.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import { detectorsOf } from '../common/detector.ts'
import { limitsWithin } from '../common/forwarder/context.ts'
import { natPriorityOf } from '../common/rules.ts'
import { elementExtent, staysAsIs } from '../common/tables.ts'
import type { TracedRules } from '../common/traced-rules.ts'
import { retireTables } from '../common/writers.ts'
import type { Mode, ModeContext, OpenPlane } from '../mode.ts'
import { slotsMax } from './balanced-slots.ts'
import { cleanNftables, isOurs } from './cleanup.ts'
import { nftablesFeatures } from './doctor.ts'
import { ENDPOINTS_MAPS } from './layout.ts'
import { LocalhostForwarders } from './localhost.ts'
import { balanceMetrics, localhostMetrics, readConnections } from './metrics.ts'
import { createNftablesPlane } from './plane.ts'
import { renderState } from './render.ts'
import { DEFAULT_NFTABLES_OPTIONS, type NftablesOptions } from './settings.ts'
import { nftablesHeld } from './show.ts'
import { EMPTY_STATE, type NftablesPlan, type NftablesState } from './state.ts'

export const nftables: Mode = {
  ...NFTABLES,
  kernelPart: 'nf_tables',
  open: (context, use) => use(openNftables(context)),
  retire: (context, signal) =>
    retireTables(context, signal, { name: tableNameOf(context.config.serviceProxyName), isOurs }),
  traced: tracedConfig,
  held: async kernel => nftablesHeld(kernel),
  features: nftablesFeatures,
  // Only Services with a maglev policy hash.
  needsFeature: kind => kind !== 'jhash',
  cleanup: cleanNftables,
  whyNotAtLocalhost: config =>
    mayForward(config) ? undefined : `the feature gate ${GATE_LOCALHOST} is false`,
  resolving: config => ({ forwardsLocalhost: mayForward(config) }),
  // Measured at 100 to 1,000 ports of one Service: docs/decisions/0022-shares.md.
  costs: { frontend: 1_280, sliceEndpoint: 320, endpoint: 320, perFrontend: false, slotsMax },
}

/** Opens nftables mode. Throws when nf_tables of this kernel cannot be reached. */
export function openNftables({
  config,
  clock,
  sockets,
  tell,
}: ModeContext): OpenPlane<NftablesState, NftablesPlan> {
  const transport = sockets.netfilter()
  const client = createNftClient({ transport, clock })
  const options = nftablesOptions(config)
  const limits = limitsWithin(sockets.room?.())
  const forwarders = new LocalhostForwarders({ clock, limits, report: event => tell?.(event) })
  return {
    plane: createNftablesPlane({
      client,
      options,
      forwarders,
      writers: { openTransport: sockets.netfilter, own: transport.portId },
    }),
    start: () => forwarders.start(),
    extent: ({ ruleset }) =>
      elementExtent(
        ruleset,
        set => set === 'frontends' || set === 'nodeports',
        set => set === 'slots' || ENDPOINTS_MAPS.has(set),
      ),
    tables: ({ ruleset, without }) => ruleset.tables.filter(({ family }) => !staysAsIs(family, without)),
    unsupported: ({ refusals }) => [...refusals.values()].flat(),
    traffic: state => readConnections(client, state),
    metrics: async state => ({
      ...(await localhostMetrics(client, state, forwarders)),
      ...balanceMetrics(state),
    }),
    async close() {
      await forwarders.close()
      await client.close()
    },
  }
}

function tracedConfig(config: Config, table: FrontendTable): TracedRules {
  const { ruleset } = finish(
    renderState(table, { base: EMPTY_STATE, without: new Set() }, nftablesOptions(config)),
  )
  return ruleset
}

function nftablesOptions(config: Config): NftablesOptions {
  const { detectLocal, masqueradeAll, masqueradeBit, serviceProxyName } = config
  const connectionCounters = config.connectionMetricsMax > 0
  return {
    ...DEFAULT_NFTABLES_OPTIONS,
    tableName: tableNameOf(serviceProxyName),
    natPriority: natPriorityOf(serviceProxyName),
    masqueradeAll,
    masqueradeBit,
    detector: detectorsOf(detectLocal),
    connectionCounters,
    logGroup: config.logRejects,
  }
}
