import { count } from '../../base/text.ts'
import { createNftClient } from '../../kernel/nft/client.ts'
import type { NftFamily, Observed } from '../../kernel/nft/state.ts'
import type { XtTableName } from '../../kernel/xt/scope.ts'
import { NFT_FAMILIES } from '../common/family.ts'
import type { Cleaned, CleanupContext } from '../mode.ts'
import { type ChainNames, chainNames, isOurChain } from '../xt-common/layout.ts'
import { XT_TABLES } from '../xt-common/read-iptables.ts'
import { NO_NFACCT_COUNTERS, openNfacctCounters } from './nfacct-counters.ts'
import { createIptablesPlane } from './plane.ts'
import { DEFAULT_IPTABLES_OPTIONS } from './settings.ts'

/** A table of iptables with the objects of an iptables mode in it. */
interface IptablesTable {
  readonly family: NftFamily
  readonly table: XtTableName
  readonly chains: number
  readonly rules: number
}

/**
 * Returns the tables that have chains of these names. For the unnamed proxy these are ours or kube-proxy's: the chains
 * do not show which. Pure.
 */
function iptablesTables(observed: Observed, names: ChainNames): readonly IptablesTable[] {
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
 * Removes the chains of an iptables mode and the rules that lead to them, then the counters of nfacct. The tables
 * stay, with all objects of other programs. Throws when the kernel rejects a change.
 */
export async function cleanIptables({ sockets, clock, proxy }: CleanupContext): Promise<Cleaned> {
  const client = createNftClient({ transport: sockets.netfilter(), clock })
  const names = chainNames(proxy)
  const isNamed = proxy !== undefined
  const counters = isNamed ? NO_NFACCT_COUNTERS : openNfacctCounters(sockets, clock, true)
  const plane = createIptablesPlane({ client, options: { ...DEFAULT_IPTABLES_OPTIONS, names } })
  try {
    const { state } = await plane.observe()
    const found = state.kind === 'observed' ? iptablesTables(state.observed, names) : []
    await plane.cleanup()
    counters.remove()
    return { removed: found.map(removedText), foreign: [] }
  } finally {
    await Promise.all([client.close(), counters.close()])
  }
}

function removedText({ family, table, chains, rules }: IptablesTable): string {
  return `${count(chains, 'chain')} with ${count(rules, 'rule')}, and the rules that led to them, in table ${family} ${table}`
}
