import { slicingOf } from '../../base/clock.ts'
import { FAMILIES } from '../../base/ip.ts'
import { createNftClient } from '../../kernel/nft/client.ts'
import { appliedScope } from '../../kernel/xt/scope.ts'
import type { ModeContext, OpenPlane } from '../mode.ts'
import type { IptablesPlan } from './diff.ts'
import { demandIptables, lesserLack } from './doctor.ts'
import { iptablesMetrics, NO_NFACCT_COUNTERS, openNfacctCounters } from './metrics.ts'
import { createBusiestFirst } from './optimize/busiest-first.ts'
import { createIptablesPlane } from './plane.ts'
import { answersAtLoopback, iptablesOptions } from './settings.ts'
import { type IptablesState, iptablesExtent } from './state.ts'

/** Opens iptables mode. Throws when nf_tables of this kernel cannot be reached. */
export function openIptables({
  config,
  clock,
  sockets,
  tell,
}: ModeContext): OpenPlane<IptablesState, IptablesPlan> {
  // This read fails without privileges. At this point nothing else is open.
  const isNamed = config.serviceProxyName !== undefined
  const nfacct = isNamed ? NO_NFACCT_COUNTERS : openNfacctCounters(sockets, clock, answersAtLoopback(config))
  const transport = sockets.netfilter()
  const client = createNftClient({ transport, clock })
  const writers = { openTransport: sockets.netfilter, own: transport.portId }
  const options = { ...iptablesOptions(config, sockets), nfacct: nfacct.available }
  let isRunning = false
  // A program that flushed the rules may have removed their counters too. Without the counters the kernel
  // rejects these rules.
  const beforeObserve = (): void => {
    if (isRunning) nfacct.ensure()
  }
  const slicing = slicingOf(clock)
  const plane = createIptablesPlane({ client, options, writers, slicing, beforeObserve })
  const { names, optimize } = options
  const report: Parameters<typeof createBusiestFirst>[0]['report'] = event => {
    if (event.kind === 'moved') plane.reordered()
    else if (event.kind === 'failed') tell?.(event)
  }
  const busiest = optimize ? createBusiestFirst({ client, clock, names, report }) : undefined
  return {
    plane,
    demand: () => demandIptables(sockets, clock),
    start() {
      nfacct.ensure()
      isRunning = true
      const missing = lesserLack(sockets, clock)
      if (missing !== undefined) tell?.({ kind: 'notice', level: 'warn', text: LACK, facts: { missing } })
      for (const text of optimize ? [AFFINITY_LIMIT] : [AFFINITY_LIMIT, LINEAR])
        tell?.({ kind: 'notice', level: 'info', text, facts: {} })
      busiest?.start()
    },
    extent: state => iptablesExtent(state, names),
    unsupported: ({ refusals }) => [...refusals.values()].flat(),
    *advance(tables, from, to) {
      if (from.kind !== 'rendered') return undefined
      const { operations } = yield* plane.diff(from, to)
      return yield* appliedScope(tables, operations)
    },
    traffic: () => Promise.resolve([]),
    metrics: state =>
      Promise.resolve(
        state === undefined ? [] : iptablesMetrics({ ...plane.counts.numbers(), ...nfacct.read() }, FAMILIES),
      ),
    async close() {
      await busiest?.close()
      await Promise.all([client.close(), nfacct.close()])
    },
  }
}

const LACK = 'this kernel lacks extensions of xtables, and rejects Services that need them'
const AFFINITY_LIMIT =
  'session affinity remembers 100 clients an endpoint unless xt_recent is loaded with a larger ip_list_tot'
const LINEAR =
  'each new connection is compared with the rules of all Services; --iptables-optimize shortens the lists'
