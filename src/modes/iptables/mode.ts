import { finish } from '../../base/clock.ts'
import { append } from '../../base/collections.ts'
import { FAMILIES } from '../../base/ip.ts'
import type { Config } from '../../config/config.ts'
import { IPTABLES } from '../../config/modes/iptables.ts'
import { createNftClient } from '../../kernel/nft/client.ts'
import { printRule } from '../../kernel/xt/print.ts'
import type { XtRule } from '../../kernel/xt/rule.ts'
import { chainKey, type XtChain } from '../../kernel/xt/scope.ts'
import type { FrontendTable } from '../../model/frontend.ts'
import type { TracedRules } from '../common/traced-rules.ts'
import { type Mode, type ModeContext, type OpenPlane, openAll } from '../mode.ts'
import { chainNames, SAME_CHAINS } from '../xt-common/layout.ts'
import { tracedChains } from '../xt-common/read-chains.ts'
import { iptablesAdvice } from './advice.ts'
import { jumpsOf } from './chains.ts'
import {
  cleanIptables,
  isIptablesRecorded,
  retireIptables,
  settleIptablesRecord,
  writeIptablesRecord,
} from './cleanup.ts'
import type { IptablesPlan } from './diff.ts'
import { demandIptables, iptablesFindings, lackingFamilies, lesserLack } from './doctor.ts'
import { iptablesMetrics, NO_NFACCT_COUNTERS, openNfacctCounters } from './metrics.ts'
import { BusiestFirst, type BusiestFirstEvent } from './optimize/busiest-first.ts'
import { IptablesPlane } from './plane.ts'
import { renderIptablesState, rulesIn } from './render.ts'
import { answersAtLoopback, iptablesOptions, iptablesProving, tuneIptables } from './settings.ts'
import { CHAIN_DUMP, iptablesHeld } from './show.ts'
import { EMPTY_STATE, type IptablesState, iptablesExtent, type RenderedState } from './state.ts'

export const iptables: Mode = {
  ...IPTABLES,
  kernelPart: 'nf_tables and xtables',
  open: (context, use) => use(openIptables(context)),
  retire: retireIptables,
  traced: tracedConfig,
  held: iptablesHeld,
  dumps: [CHAIN_DUMP],
  examine: iptablesFindings,
  // The rules consist of xtables extensions. Of the features of nf_tables they need only nat chains.
  needsFeature: kind => kind === 'nat' || kind === 'log',
  cleanup: cleanIptables,
  cleanupOnRequest: true,
  isRecorded: isIptablesRecorded,
  settleRecord: settleIptablesRecord,
  tune: tuneIptables,
  record: writeIptablesRecord,
  whyNotAtLocalhost: ({ iptables: { localhostNodePorts } }) =>
    localhostNodePorts ? undefined : 'iptables.localhostNodePorts is false',
  resolving: config => ({ loopbackNodePorts: answersAtLoopback(config) }),
  // Measured at 100 to 1,000 ports of one Service: docs/decisions/0022-shares.md.
  costs: { frontend: 1_536, sliceEndpoint: 0, endpoint: 2_200, perFrontend: false },
  advice: iptablesAdvice,
  countsFailures: true,
  leavesGarbage: true,
  lock: {
    of: proxy => `kprobe/chains/${chainNames(proxy).prefix}`,
    taken:
      '--service-proxy-name has the same hash: its iptables chains have the same names; choose another name',
  },
  proving: iptablesProving,
  exclusive: () => SAME_CHAINS,
}

/** Opens iptables mode. Throws when nf_tables of this kernel cannot be reached. */
export function openIptables({
  config,
  clock,
  sockets,
  tell,
}: ModeContext): OpenPlane<IptablesState, IptablesPlan> {
  const isNamed = config.serviceProxyName !== undefined
  const { nfacct, transport } = openAll(sockets, open => ({
    // This read fails without privileges.
    nfacct: isNamed ? NO_NFACCT_COUNTERS : openNfacctCounters(open, clock, answersAtLoopback(config)),
    transport: open.netfilter(),
  }))
  const client = createNftClient({ transport, clock })
  const writers = { openTransport: sockets.netfilter, own: transport.portId }
  const options = { ...iptablesOptions(config, sockets), nfacct: nfacct.available }
  let isRunning = false
  // A program that flushed the rules may have removed their counters too. Without the counters the kernel
  // rejects these rules.
  const beforeObserve = (): void => {
    if (isRunning) nfacct.ensure()
  }
  const lacking = () => lackingFamilies(sockets, clock)
  const plane = new IptablesPlane({ client, options, writers, clock, beforeObserve, lacking })
  const { names, optimize } = options
  const report = (event: BusiestFirstEvent) => {
    if (event.kind === 'moved') plane.reordered()
    else if (event.kind === 'failed') tell?.(event)
  }
  const busiest = optimize ? new BusiestFirst({ client, clock, names, report }) : undefined
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
    metrics: state =>
      Promise.resolve(
        state === undefined ? {} : iptablesMetrics({ ...plane.counts.numbers(), ...nfacct.read() }, FAMILIES),
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

function tracedConfig(config: Config, table: FrontendTable): TracedRules {
  const options = iptablesOptions(config, {})
  const state = finish(renderIptablesState(table, { base: EMPTY_STATE, without: new Set() }, options))
  return tracedIptables(state)
}

/** Gives our chains and the jumps that lead to them, without rules of other programs in the same tables. */
export function tracedIptables(state: RenderedState): TracedRules {
  return tracedChains({ chains: wantedChains(state), jumps: jumpsOf(state.statics), print: printRule })
}

/**
 * Returns every wanted chain once, with its entries among its rules; the fixed chains come last. It visits all
 * Services.
 */
export function* wantedChains(state: RenderedState): Iterable<XtChain> {
  const entries = new Map<string, XtRule[]>()
  const seen = new Set<string>()
  for (const owner of state.frontends.services.keys()) {
    const rules = rulesIn(state, owner)
    for (const { rule, ...place } of rules.entries) append(entries, chainKey(place, place.chain), rule)
    for (const chain of rules.chains) {
      const key = chainKey(chain, chain.name)
      if (chain.shared === true && seen.has(key)) continue
      if (chain.shared === true) seen.add(key)
      yield chain
    }
  }
  for (const chain of state.fixed.chains.values()) {
    const rules = [...chain.rules, ...(entries.get(chainKey(chain, chain.name)) ?? []), ...chain.last]
    yield { ...chain, rules, last: [] }
  }
}
