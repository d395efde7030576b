import { count } from '../../base/text.ts'
import type { SurveyedChain } from '../../kernel/nft/survey.ts'
import { isKubeProxyChain, KUBE_PROXY } from '../common/kube-proxy.ts'
import { MODES, proxyOfTable } from '../registry.ts'
import { chainNames, namedPrefixOf } from '../xt-common/layout.ts'
import { REMOVES_ALL, REMOVES_IPTABLES, REMOVES_NFT } from './leftovers.ts'
import { kubeProxyChains, type LegacyTable } from './legacy-iptables.ts'

/** Another program on this node that changes packets before or after kprobe. */
interface Neighbor {
  readonly severity: 'warning' | 'note'
  readonly what: string
  readonly advice: string
}

export interface Neighborhood {
  readonly chains: readonly SurveyedChain[]
  /** The name of kprobe's tables, which is also that of kube-proxy's. */
  readonly tableName: string
  /** kprobe writes iptables chains, or is about to. */
  readonly writesIptables: boolean
  /** The record of iptables mode says that a kprobe wrote chains here. */
  readonly wroteIptables?: boolean
  /** The name of this proxy; undefined for the unnamed one. Another proxy serves the Services that a named one does not. */
  readonly proxy?: string | undefined
  readonly legacyTables: readonly LegacyTable[]
  /** Virtual servers: the lines of /proc/net/ip_vs without the heading. */
  readonly virtualServers: readonly string[]
  /** Descriptions of other leftovers that only kube-proxy removes. */
  readonly leftElsewhere?: readonly string[]
}

/** Hooks by their numbers: NF_INET_* of linux/netfilter.h. */
const HOOKS: readonly string[] = ['prerouting', 'input', 'forward', 'output', 'postrouting', 'ingress']
const NF_DROP = 0

/** Finds other programs at the same hooks, and leftovers of other proxies. Pure. */
export function neighborsOf(around: Neighborhood): readonly Neighbor[] {
  return [
    ...(around.proxy === undefined ? otherProxies(around) : []),
    ...dropPolicies(around),
    ...natChains(around),
    ...namedChains(around),
    ...(around.proxy === undefined ? legacyProxies(around) : []),
    ...legacy(around),
  ]
}

function otherProxies(around: Neighborhood): Neighbor[] {
  const { chains, tableName, virtualServers, writesIptables, leftElsewhere = [] } = around
  const found: Neighbor[] = []
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
    found.push(
      writesIptables
        ? {
            severity: 'note',
            what: `chains of an iptables mode are in ${iptables.join(' and ')}`,
            advice: around.wroteIptables === true ? OWN_CHAINS : FOUND_CHAINS,
          }
        : around.wroteIptables === true
          ? {
              severity: 'warning',
              what: `kprobe's iptables mode wrote chains in ${iptables.join(' and ')}`,
              advice: `they may catch Service traffic before another mode does; if no kprobe runs in iptables mode, ${REMOVES_IPTABLES} removes them`,
            }
          : {
              severity: 'warning',
              what: `an iptables mode, kube-proxy's or kprobe's, left chains in ${iptables.join(' and ')}`,
              advice: `they may catch Service traffic before kprobe does; ${REMOVES_NFT} removes them`,
            },
    )
  if (virtualServers.length > 0)
    found.push({
      severity: 'warning',
      what: `IPVS has ${virtualServers.length} virtual servers`,
      advice: `if they are kube-proxy's, ${REMOVES_ALL} removes them`,
    })
  for (const what of leftElsewhere)
    found.push({ severity: 'note', what: `kube-proxy left ${what}`, advice: `${REMOVES_NFT} removes it` })
  return found
}

const OWN_CHAINS = "kprobe's iptables mode wrote them, or adopted them from kube-proxy"
const FOUND_CHAINS =
  "kprobe's and kube-proxy's are the same, so their author is unknown; kprobe adopts them once kube-proxy has stopped"

function dropPolicies({ chains }: Neighborhood): Neighbor[] {
  return chains
    .filter(({ chain }) => chain.hook?.policy === NF_DROP)
    .map(({ family, table, chain }) => ({
      severity: 'note',
      what: `${family} ${table} ${chain.name} drops what it does not accept (hook ${hookName(chain.hook?.hooknum)})`,
      advice: 'kprobe does not open the firewall: this chain must accept traffic to Services',
    }))
}

/** Finds other NAT chains. In iptables mode, kprobe's own jumps are in the table nat of iptables-nft. */
function natChains({ chains, tableName, writesIptables, proxy }: Neighborhood): Neighbor[] {
  const isOwn = (table: string) => table === tableName || (writesIptables && table === 'nat')
  return chains
    .filter(({ table, chain }) => chain.hook?.type === 'nat' && !isOwn(table))
    .map(({ family, table, chain }) => ({
      severity: 'note',
      what: `${family} ${table} ${chain.name} translates addresses too (${hookName(chain.hook?.hooknum)}, priority ${chain.hook?.priority})`,
      advice: natAdvice(table, proxy !== undefined),
    }))
}

function natAdvice(table: string, isNamed: boolean): string {
  if (isNamed && MODES.some(mode => mode.notNamed === undefined && mode.tableName(undefined) === table))
    return 'it has the name of a table of the unnamed proxy, which serves Services without the label service-proxy-name'
  const name = proxyOfTable(table)
  return name === undefined
    ? "connections that this NAT chain translates first bypass kprobe's Services"
    : `it has the name of a table of \`kprobe run --service-proxy-name=${name}\`, which serves only Services with that label`
}

/** Finds chains of proxies of other names by their prefixes. */
function namedChains({ chains, proxy }: Neighborhood): Neighbor[] {
  const own = chainNames(proxy).prefix
  const places = new Map<string, Set<string>>()
  for (const { family, table, chain } of chains) {
    const prefix = namedPrefixOf(chain.name)
    if (prefix === undefined || prefix === own) continue
    places.set(prefix, new Set([...(places.get(prefix) ?? []), `${family} ${table}`]))
  }
  return [...places].map(([prefix, tables]) => ({
    severity: 'note',
    what: `chains ${prefix}-* are in ${[...tables].sort().join(' and ')}`,
    advice: `they have the names of a named proxy's chains in iptables mode; comments of the rules that lead to ${prefix}-SERVICES contain its name`,
  }))
}

/** Finds chains that only the tools of legacy iptables can list and remove. */
function legacyProxies({ legacyTables }: Neighborhood): Neighbor[] {
  return legacyTables.flatMap((table): Neighbor[] => {
    const place = `legacy iptables (${table.family} ${table.name})`
    if (typeof table.chains === 'string')
      return [
        {
          severity: 'note',
          what: `cannot check whether kube-proxy has chains in ${place}`,
          advice: `${table.chains}; \`iptables-legacy-save\` and \`ip6tables-legacy-save\` show them`,
        },
      ]
    const left = kubeProxyChains(table)
    const rules = left.reduce((sum, chain) => sum + chain.rules, 0)
    return left.length === 0
      ? []
      : [
          {
            severity: 'warning',
            what: `kube-proxy's iptables mode has ${count(left.length, 'chain')} with ${count(rules, 'rule')} in ${place}`,
            advice: LEGACY_ADVICE,
          },
        ]
  })
}

const LEGACY_ADVICE =
  'they translate Service traffic beside kprobe, which writes to nf_tables and does not change them: stop kube-proxy, then remove them ' +
  `with ${REMOVES_ALL} where \`iptables\` is iptables-legacy, or restart the node`

function legacy({ chains, legacyTables, writesIptables }: Neighborhood): Neighbor[] {
  if (legacyTables.length === 0) return []
  const isBeside = chains.some(
    ({ table, chain }) => chain.hook !== undefined && ['nat', 'filter', 'mangle'].includes(table),
  )
  const both = isBeside || writesIptables
  const names = legacyTables.map(({ family, name }) => `${family} ${name}`).join(', ')
  const others = isBeside
    ? 'those of iptables-nft'
    : 'those of iptables-nft, which kprobe writes in this mode'
  return [
    {
      severity: both ? 'warning' : 'note',
      what: `legacy iptables tables are in use: ${names}${both ? `, beside ${others}` : ''}`,
      advice:
        'both see the same packets, in an order that is hard to predict; use one flavor of iptables (update-alternatives)',
    },
  ]
}

function tablesOf(chains: readonly SurveyedChain[]): readonly string[] {
  return [...new Set(chains.map(({ family, table }) => `${family} ${table}`))].sort()
}

function hookName(hooknum: number | undefined): string {
  return hooknum === undefined ? 'none' : (HOOKS[hooknum] ?? String(hooknum))
}
