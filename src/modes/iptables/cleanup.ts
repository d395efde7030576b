import { count } from '../../base/text.ts'
import { createNftClient, type NftClient } from '../../kernel/nft/client.ts'
import type { Observed } from '../../kernel/nft/state.ts'
import { NFT_FAMILIES } from '../common/family.ts'
import type { Cleaned, CleanupContext, ModeContext, Retired } from '../mode.ts'
import { KUBE_LOAD_BALANCER } from '../xt-common/ipvs-chain-names.ts'
import { type ChainNames, chainNames, isOurChain, KUBE_PROXY_CANARY } from '../xt-common/layout.ts'
import { XT_TABLES } from '../xt-common/read-iptables.ts'
import { NO_NFACCT_COUNTERS, openNfacctCounters } from './nfacct-counters.ts'
import { createIptablesPlane } from './plane.ts'
import { DEFAULT_IPTABLES_OPTIONS } from './settings.ts'

export async function withClient<T>(
  { sockets, clock }: Pick<ModeContext, 'sockets' | 'clock'>,
  use: (client: NftClient) => Promise<T>,
): Promise<T> {
  const client = createNftClient({ transport: sockets.netfilter(), clock })
  try {
    return await use(client)
  } finally {
    await client.close()
  }
}

/**
 * Removes the chains of an iptables mode and the rules that lead to them, then the counters of nfacct. The tables
 * stay, with all objects of other programs. Throws when the kernel rejects a change.
 */
export async function cleanIptables(context: CleanupContext): Promise<Cleaned> {
  const { sockets, clock, proxy } = context
  const isNamed = proxy !== undefined
  const counters = isNamed ? NO_NFACCT_COUNTERS : openNfacctCounters(sockets, clock, true)
  try {
    const removed = await withClient(context, client => removeChains(client, chainNames(proxy)))
    counters.remove()
    return { removed, foreign: [] }
  } finally {
    await counters.close()
  }
}

async function removeChains(client: NftClient, names: ChainNames): Promise<readonly string[]> {
  const plane = createIptablesPlane({ client, options: { ...DEFAULT_IPTABLES_OPTIONS, names } })
  const { state } = await plane.observe()
  await plane.cleanup()
  return state.kind === 'observed' ? chainsByTable(state.observed, names) : []
}

/** Describes the chains of these names, a line for each table. */
function chainsByTable(observed: Observed, names: ChainNames): readonly string[] {
  return NFT_FAMILIES.flatMap(family =>
    XT_TABLES.flatMap(table => {
      const chains = [...(observed.get(`${family} ${table}`)?.chains.values() ?? [])]
      const ours = chains.filter(({ name }) => isOurChain(names, table, name))
      if (ours.length === 0) return []
      const rules = ours.reduce((sum, chain) => sum + chain.rules.length, 0)
      return `${count(ours.length, 'chain')} with ${count(rules, 'rule')}, and the rules that led to them, in table ${family} ${table}`
    }),
  )
}

/**
 * Removes our chains and the rules that lead to them. The tables stay, because their hooks keep every flow. Chains of
 * the unnamed proxy have kube-proxy's names: they stay unless this process wrote them.
 */
export async function retireIptables(
  context: ModeContext,
  signal: AbortSignal,
  isKnown: boolean,
): Promise<Retired> {
  const names = chainNames(context.config.serviceProxyName)
  return await withClient(context, async client => {
    if (!(await hasChains(client, names))) return 'nothing'
    if (!isKnown && names.proxy === undefined) return { kept: KEPT }
    if (signal.aborted) return 'nothing'
    await removeChains(client, names)
    return 'removed'
  })
}

const KEPT =
  "iptables-mode chains found; kept, because they may be kube-proxy's, which have the same names; remove them with `kprobe cleanup --proxy-mode=iptables`"

/**
 * Returns whether the kernel holds chains of this mode with these names. KUBE-SERVICES belongs to IPVS mode if chains
 * that only IPVS mode has are beside it, and the canary of iptables mode is absent.
 */
async function hasChains(client: NftClient, { proxy, services }: ChainNames): Promise<boolean> {
  const beside = proxy === undefined ? [KUBE_PROXY_CANARY, KUBE_LOAD_BALANCER] : []
  const chains = (name: string): boolean => name === services || beside.includes(name)
  const places = NFT_FAMILIES.map(family => ({ family, table: 'nat' as const, chains }))
  const { observed } = await client.listChains(places)
  return [...observed.values()].some(({ chains: found }) => {
    const isOfIpvs = found.has(KUBE_LOAD_BALANCER) && !found.has(KUBE_PROXY_CANARY)
    return found.has(services) && !isOfIpvs
  })
}
