import type { SurveyedChain } from '../kernel/nft/survey.ts'
import { isKubeProxyChain, KUBE_PROXY } from './leftovers-kube-proxy.ts'
import { REMOVES_ALL, REMOVES_NFT } from './leftovers-text.ts'

/** Somebody else on this node who changes what packets do before or after us. */
export interface Neighbour {
  readonly severity: 'warning' | 'note'
  readonly what: string
  readonly advice: string
}

export interface Neighbourhood {
  readonly chains: readonly SurveyedChain[]
  /** Name of the tables that are ours, or kube-proxy's. */
  readonly tableName: string
  /** /proc/net/ip_tables_names and ip6_tables_names: tables of the legacy flavour of iptables. */
  readonly legacyTables: readonly string[]
  /** /proc/net/ip_vs: virtual servers, without its heading. */
  readonly virtualServers: readonly string[]
  /** What else kube-proxy has left where only it removes it, in words. */
  readonly leftElsewhere?: readonly string[]
}

/** linux/netfilter.h, NF_INET_*. */
const HOOKS: readonly string[] = ['prerouting', 'input', 'forward', 'output', 'postrouting', 'ingress']
const NF_DROP = 0

/** Other writers on the same hooks, and what another proxy has left. Pure. */
export function neighboursOf(around: Neighbourhood): readonly Neighbour[] {
  return [...otherProxies(around), ...dropPolicies(around), ...natChains(around), ...legacy(around)]
}

function otherProxies({ chains, tableName, virtualServers, leftElsewhere = [] }: Neighbourhood): Neighbour[] {
  const found: Neighbour[] = []
  const nftables = tablesOf(
    chains.filter(({ table, chain }) => table === tableName && isKubeProxyChain(chain.name)),
  )
  if (nftables.length > 0)
    found.push({
      severity: 'warning',
      what: `kube-proxy's nftables mode holds ${nftables.join(' and ')}`,
      advice: 'stop kube-proxy before kprobe runs; kprobe replaces these tables in one transaction',
    })
  const iptables = tablesOf(chains.filter(({ chain }) => KUBE_PROXY.ownsChain(chain.name)))
  if (iptables.length > 0)
    found.push({
      severity: 'warning',
      what: `kube-proxy's iptables mode left chains in ${iptables.join(' and ')}`,
      advice: `they may catch Service traffic before kprobe does; ${REMOVES_NFT} removes them`,
    })
  if (virtualServers.length > 0)
    found.push({
      severity: 'warning',
      what: `IPVS has ${virtualServers.length} virtual servers`,
      advice: `if they are kube-proxy's, ${REMOVES_ALL} removes them`,
    })
  for (const what of leftElsewhere)
    found.push({ severity: 'note', what: `kube-proxy left ${what}`, advice: `${REMOVES_NFT} removes that` })
  return found
}

function dropPolicies({ chains }: Neighbourhood): Neighbour[] {
  return chains
    .filter(({ chain }) => chain.hook?.policy === NF_DROP)
    .map(({ family, table, chain }) => ({
      severity: 'note',
      what: `${family} ${table} ${chain.name} drops what it does not accept (hook ${hookName(chain.hook?.hooknum)})`,
      advice: 'it has to accept traffic to Services, as kprobe opens no holes in firewalls',
    }))
}

function natChains({ chains, tableName }: Neighbourhood): Neighbour[] {
  return chains
    .filter(({ table, chain }) => chain.hook?.type === 'nat' && table !== tableName)
    .map(({ family, table, chain }) => ({
      severity: 'note',
      what: `${family} ${table} ${chain.name} translates addresses too (${hookName(chain.hook?.hooknum)}, priority ${chain.hook?.priority})`,
      advice: 'the first translation of a connection counts; what it translates never reaches a Service',
    }))
}

function legacy({ chains, legacyTables }: Neighbourhood): Neighbour[] {
  if (legacyTables.length === 0) return []
  const both = chains.some(
    ({ table, chain }) => chain.hook !== undefined && ['nat', 'filter', 'mangle'].includes(table),
  )
  return [
    {
      severity: both ? 'warning' : 'note',
      what: `legacy iptables tables are in use: ${legacyTables.join(', ')}${both ? ', beside those of iptables-nft' : ''}`,
      advice:
        'they see the same packets in an order that is hard to tell; use one flavour of iptables (update-alternatives)',
    },
  ]
}

function tablesOf(chains: readonly SurveyedChain[]): readonly string[] {
  return [...new Set(chains.map(({ family, table }) => `${family} ${table}`))].sort()
}

function hookName(hooknum: number | undefined): string {
  return hooknum === undefined ? 'none' : (HOOKS[hooknum] ?? String(hooknum))
}
