import { FAMILIES } from '../base/ip.ts'
import { finish, finishInSlices, slicingOf } from '../base/steps.ts'
import type { Config } from '../config/config.ts'
import { createNftClient } from '../kernel/nft/client.ts'
import { createTracer } from '../kernel/nft/trace.ts'
import type { FrontendTable } from '../model/frontend.ts'
import { readConnections } from '../modes/nftables/connections.ts'
import { DEFAULT_NFTABLES_OPTIONS, type NftablesOptions } from '../modes/nftables/options.ts'
import type { NftablesPlan } from '../modes/nftables/plan.ts'
import { createNftablesPlane } from '../modes/nftables/plane.ts'
import { renderState } from '../modes/nftables/render.ts'
import { EMPTY_STATE, type NftablesState } from '../modes/nftables/state.ts'
import { watchWriters } from '../modes/nftables/writers.ts'
import { detectorOf } from './detector.ts'
import { nftablesExtent } from './extent.ts'
import { instanceOf } from './instance.ts'
import type { ModeContext, ModeTracer, OpenPlane } from './mode.ts'

/** Throws when the kernel's nf_tables cannot be spoken to. */
export function openNftables({
  config,
  clock,
  sockets,
}: ModeContext): OpenPlane<NftablesState, NftablesPlan> {
  const transport = sockets.netfilter()
  const client = createNftClient({ transport, clock })
  const options = nftablesOptions(config)
  const watching = { openTransport: sockets.netfilter, own: transport.portId, table: options.tableName }
  return {
    plane: createNftablesPlane({ client, options, watchWriters: report => watchWriters(watching, report) }),
    demand: () => undefined,
    start: () => undefined,
    extent: ({ ruleset }) => nftablesExtent(ruleset),
    misfits: ({ refusals }) => [...refusals.values()].flat(),
    traffic: state => readConnections(client, state, steps => finishInSlices(steps, slicingOf(clock))),
    close: () => client.close(),
  }
}

/** Deletes our tables at once: the flows that they translated go on as long as another mode has nat chains. */
export async function retireNftables(context: ModeContext, signal: AbortSignal): Promise<boolean> {
  const { plane, close } = openNftables(context)
  try {
    const { state } = await plane.observe()
    const isHere = state.ruleset.tables.some(({ sets }) => sets.has('frontends'))
    if (isHere && !signal.aborted) await plane.cleanup()
    return isHere
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

export function nftablesOptions(config: Config): NftablesOptions {
  const { detectLocal, masqueradeAll, masqueradeBit, serviceProxyName } = config
  const { nftables: tableName, natPriority } = instanceOf(serviceProxyName)
  const [IPv4, IPv6] = FAMILIES.map(family => detectorOf(detectLocal, family))
  const connectionCounters = config.connectionMetricsMax > 0
  const detector = { IPv4, IPv6 }
  return {
    ...DEFAULT_NFTABLES_OPTIONS,
    tableName,
    natPriority,
    masqueradeAll,
    masqueradeBit,
    detector,
    connectionCounters,
  }
}
