import { systemClock } from '../base/clock.ts'
import { count } from '../base/text.ts'
import type { KernelSockets } from '../daemon/mode.ts'
import { NO_NFACCT_COUNTERS, openNfacctCounters } from '../daemon/nfacct-counters.ts'
import { KERNEL } from '../daemon/open.ts'
import { createNftClient } from '../kernel/nft/client.ts'
import type { Observed } from '../kernel/nft/observed.ts'
import type { NftFamily } from '../kernel/nft/state.ts'
import type { XtTableName } from '../kernel/xt/scope.ts'
import { NFT_FAMILIES } from '../modes/common/family.ts'
import { type ChainNames, isOurChain } from '../modes/iptables/layout.ts'
import { DEFAULT_IPTABLES_OPTIONS } from '../modes/iptables/options.ts'
import { createIptablesPlane } from '../modes/iptables/plane.ts'

/** A table of iptables with what an iptables mode has in it. */
export interface IptablesTable {
  readonly family: NftFamily
  readonly table: XtTableName
  readonly chains: number
  readonly rules: number
}

export const XT_TABLES: readonly XtTableName[] = ['filter', 'nat', 'mangle']

/** Tables that have chains of these names; without one, ours or kube-proxy's: the chains do not tell which. Pure. */
export function iptablesTables(observed: Observed, names: ChainNames): readonly IptablesTable[] {
  return NFT_FAMILIES.flatMap(family =>
    XT_TABLES.flatMap(table => {
      const chains = [...(observed.get(`${family} ${table}`)?.chains.values() ?? [])]
      const ours = chains.filter(({ name }) => isOurChain(names, table, name))
      const rules = ours.reduce((sum, chain) => sum + chain.rules.length, 0)
      return ours.length === 0 ? [] : [{ family, table, chains: ours.length, rules }]
    }),
  )
}

/**
 * Takes the chains of an iptables mode and the rules that lead to them out of the tables, which stay, with all that others
 * have there; then the counters of nfacct. Gives what there was. Throws when the kernel refuses.
 */
export async function removeIptables(
  names: ChainNames,
  sockets: KernelSockets = KERNEL,
): Promise<readonly IptablesTable[]> {
  const client = createNftClient({ transport: sockets.netfilter(), clock: systemClock })
  const isNamed = names.proxy !== undefined
  const counters = isNamed ? NO_NFACCT_COUNTERS : openNfacctCounters(sockets, systemClock, true)
  const plane = createIptablesPlane({ client, options: { ...DEFAULT_IPTABLES_OPTIONS, names } })
  try {
    const { state } = await plane.observe()
    const found = state.kind === 'observed' ? iptablesTables(state.observed, names) : []
    await plane.cleanup()
    counters.remove()
    return found
  } finally {
    await Promise.all([client.close(), counters.close()])
  }
}

/** What was removed, one item a line. Pure. */
export function iptablesRemovedTexts(tables: readonly IptablesTable[]): readonly string[] {
  return tables.map(
    ({ family, table, chains, rules }) =>
      `${count(chains, 'chain')} with ${count(rules, 'rule')}, and the rules that led to them, in table ${family} ${table}`,
  )
}
