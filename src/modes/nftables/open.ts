import { finish, finishInSlices, slicingOf } from '../../base/clock.ts'
import type { Config } from '../../config/config.ts'
import { createTracer } from '../../kernel/evaluate/trace.ts'
import { createNftClient } from '../../kernel/nft/client.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import { elementExtent } from '../common/elements.ts'
import { detectorsOf } from '../common/expressions.ts'
import { limitsWithin } from '../common/relay/limits.ts'
import { natPriorityOf } from '../common/rules.ts'
import { generationWatch, watchTableWriters } from '../common/writers.ts'
import type { ModeContext, ModeTracer, OpenPlane, Retired } from '../mode.ts'
import { ENDPOINTS_MAPS } from './layout.ts'
import { LocalhostRelays } from './localhost-relays.ts'
import { localhostMetrics, readConnections } from './metrics.ts'
import { createNftablesPlane } from './plane.ts'
import { renderState } from './render.ts'
import { DEFAULT_NFTABLES_OPTIONS, type NftablesOptions, tableNameOf } from './settings.ts'
import { EMPTY_STATE, type NftablesPlan, type NftablesState } from './state.ts'

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
  const watching = { openTransport: sockets.netfilter, own: transport.portId, table: options.tableName }
  const limits = limitsWithin(sockets.room?.())
  const relays = new LocalhostRelays({ clock, limits, report: event => tell?.(event) })
  return {
    plane: createNftablesPlane({
      client,
      options,
      relays,
      watchGeneration: generationWatch(sockets.netfilter),
      watchWriters: report => watchTableWriters(watching, report),
    }),
    demand: () => undefined,
    start: () => relays.start(),
    extent: ({ ruleset }) =>
      elementExtent(
        ruleset,
        set => set === 'frontends' || set === 'nodeports',
        set => set === 'slots' || ENDPOINTS_MAPS.has(set),
      ),
    tables: ({ ruleset }) => ruleset.tables,
    unsupported: ({ refusals }) => [...refusals.values()].flat(),
    traffic: state => readConnections(client, state, steps => finishInSlices(steps, slicingOf(clock))),
    metrics: state => localhostMetrics(client, state, relays),
    async close() {
      await relays.close()
      await client.close()
    },
  }
}

/**
 * Deletes our tables at once. The flows that they translated continue as long as another mode has nat chains.
 */
export async function retireNftables(context: ModeContext, signal: AbortSignal): Promise<Retired> {
  const { plane, close } = openNftables(context)
  try {
    const { state } = await plane.observe()
    const isHere = state.ruleset.tables.some(({ sets }) => sets.has('frontends'))
    if (isHere && !signal.aborted) await plane.cleanup()
    return isHere ? 'removed' : 'nothing'
  } finally {
    await close()
  }
}

export function nftablesTracer(config: Config, table: FrontendTable): ModeTracer {
  const { ruleset } = finish(
    renderState(table, { base: EMPTY_STATE, without: new Set() }, nftablesOptions(config)),
  )
  return { ...createTracer(ruleset), ownSource: () => undefined }
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
