import { count } from '../../base/text.ts'
import { NF_DROP } from '../../kernel/nft/constants.ts'
import type { SurveyedChain } from '../../kernel/nft/survey.ts'
import { isKubeProxyChain, KUBE_PROXY } from '../common/kube-proxy.ts'
import { MODES, proxyOfTable } from '../registry.ts'
import { chainNames, namedPrefixOf } from '../xt-common/layout.ts'
import { DROP_ADVICE, droppingChains, hookName } from './dropping-chains.ts'
import { REMOVES_ALL, REMOVES_IPTABLES, REMOVES_NFT } from './leftovers.ts'
import { kubeProxyChains } from './legacy-iptables.ts'
import { orderAdvice } from './nat-order.ts'
import { programsOf, type Surroundings } from './programs.ts'

/** Another program on this node that changes packets before or after kprobe. */
interface Neighbor {
  readonly severity: 'warning' | 'note'
  readonly what: string
  readonly advice: string
}

export interface Neighborhood extends Surroundings {
  /** The name of kprobe's tables, which is also that of kube-proxy's. */
  readonly tableName: string
  /** kprobe writes iptables chains, or is about to. */
  readonly writesIptables: boolean
  /** IPVS balances, which the kernel calls behind all nat chains of prerouting. */
  readonly usesIpvs?: boolean
  /** The record of iptables mode shows that a kprobe wrote chains here. */
  readonly wroteIptables?: boolean
  /** The name of this proxy; undefined for the unnamed one. Another proxy serves the Services that a named one does not. */
  readonly proxy?: string | undefined
  /** Virtual servers: the lines of /proc/net/ip_vs without the heading. */
  readonly virtualServers: readonly string[]
  /** Descriptions of other leftovers that only kube-proxy removes. */
  readonly leftElsewhere?: readonly string[]
}

/** Finds other programs at the same hooks, and leftovers of other proxies. Pure. */
export function neighborsOf(around: Neighborhood): readonly Neighbor[] {
  return [
    ...(around.proxy === undefined ? otherProxies(around) : []),
    ...dropPolicies(around),
    ...droppingChains(around).map(what => note(what, DROP_ADVICE)),
    ...natChains(around),
    ...namedChains(around),
    ...(around.proxy === undefined ? legacyProxies(around) : []),
    ...legacy(around),
    ...programs(around),
  ]
}

function warning(what: string, advice: string): Neighbor {
  return { severity: 'warning', what, advice }
}

function note(what: string, advice: string): Neighbor {
  return { severity: 'note', what, advice }
}

function otherProxies({ chains, tableName, virtualServers, leftElsewhere = [], ...more }: Neighborhood) {
  const found: Neighbor[] = []
  const nftables = tablesOf(
    chains.filter(({ table, chain }) => table === tableName && isKubeProxyChain(chain.name)),
  )
  if (nftables.length > 0)
    found.push(
      warning(
        `kube-proxy's nftables mode holds ${nftables.join(' and ')}`,
        'stop kube-proxy before kprobe runs; kprobe replaces these tables in one transaction',
      ),
    )
  const iptables = tablesOf(chains.filter(({ chain }) => KUBE_PROXY.ownsChain(chain.name)))
  if (iptables.length > 0) found.push(iptablesChains(iptables.join(' and '), more))
  if (virtualServers.length > 0)
    found.push(
      warning(
        `IPVS has ${virtualServers.length} virtual servers`,
        `if they are kube-proxy's, ${REMOVES_ALL} removes them`,
      ),
    )
  const others = leftElsewhere.map(what => note(`kube-proxy left ${what}`, `${REMOVES_NFT} removes it`))
  return [...found, ...others]
}

function iptablesChains(
  tables: string,
  { writesIptables, wroteIptables = false }: Pick<Neighborhood, 'writesIptables' | 'wroteIptables'>,
): Neighbor {
  if (writesIptables)
    return note(`chains of an iptables mode are in ${tables}`, wroteIptables ? OWN_CHAINS : FOUND_CHAINS)
  return wroteIptables
    ? warning(
        `kprobe's iptables mode wrote chains in ${tables}`,
        `they may catch Service traffic before another mode does; if no kprobe runs in iptables mode, ${REMOVES_IPTABLES} removes them`,
      )
    : warning(
        `an iptables mode, kube-proxy's or kprobe's, left chains in ${tables}`,
        `they may catch Service traffic before kprobe does; ${REMOVES_NFT} removes them`,
      )
}

const OWN_CHAINS = "kprobe's iptables mode wrote them, or adopted them from kube-proxy"
const FOUND_CHAINS =
  "kprobe's and kube-proxy's are the same, so their author is unknown; kprobe adopts them once kube-proxy has stopped"

function dropPolicies({ chains }: Neighborhood): readonly Neighbor[] {
  return chains
    .filter(({ chain }) => chain.hook?.policy === NF_DROP)
    .map(({ family, table, chain }) =>
      note(
        `${family} ${table} ${chain.name} drops packets that it does not accept (hook ${hookName(chain.hook?.hooknum)})`,
        'kprobe does not open the firewall: this chain must accept traffic to Services',
      ),
    )
}

/** Finds other NAT chains. In iptables mode, kprobe's own jumps are in the table nat of iptables-nft. */
function natChains(around: Neighborhood): readonly Neighbor[] {
  const { chains, tableName, writesIptables, proxy } = around
  const isOwn = (table: string) => table === tableName || (writesIptables && table === 'nat')
  return chains
    .filter(({ table, chain }) => chain.hook?.type === 'nat' && !isOwn(table))
    .map(({ family, table, chain: { name, hook } }) =>
      note(
        `${family} ${table} ${name} translates addresses too (${hookName(hook?.hooknum)}, priority ${hook?.priority})`,
        ownerAdvice(table, proxy !== undefined) ?? orderAdvice(hook, around),
      ),
    )
}

function ownerAdvice(table: string, isNamed: boolean): string | undefined {
  if (isNamed && MODES.some(mode => mode.notNamed === undefined && mode.tableName(undefined) === table))
    return 'it has the name of a table of the unnamed proxy, which serves Services without the label service-proxy-name'
  const name = proxyOfTable(table)
  return name === undefined
    ? undefined
    : `it has the name of a table of \`kprobe run --service-proxy-name=${name}\`, which serves only Services with that label`
}

/** Finds chains of proxies of other names by their prefixes. */
function namedChains({ chains, proxy }: Neighborhood): readonly Neighbor[] {
  const own = chainNames(proxy).prefix
  const places = new Map<string, Set<string>>()
  for (const { family, table, chain } of chains) {
    const prefix = namedPrefixOf(chain.name)
    if (prefix === undefined || prefix === own) continue
    places.set(prefix, new Set([...(places.get(prefix) ?? []), `${family} ${table}`]))
  }
  return [...places].map(([prefix, tables]) =>
    note(
      `chains ${prefix}-* are in ${[...tables].sort().join(' and ')}`,
      `they have the names of a named proxy's chains in iptables mode; comments of the rules that lead to ${prefix}-SERVICES contain its name`,
    ),
  )
}

/** Finds chains that only the tools of legacy iptables can list and remove. */
function legacyProxies({ legacyTables }: Neighborhood): readonly Neighbor[] {
  return legacyTables.flatMap(table => {
    const place = `legacy iptables (${table.family} ${table.name})`
    if (typeof table.chains === 'string')
      return note(
        `cannot check whether kube-proxy has chains in ${place}`,
        `${table.chains}; \`iptables-legacy-save\` and \`ip6tables-legacy-save\` show them`,
      )
    const left = kubeProxyChains(table)
    if (left.length === 0) return []
    const rules = left.reduce((sum, chain) => sum + chain.rules, 0)
    const what = `${count(left.length, 'chain')} with ${count(rules, 'rule')} in ${place}`
    return warning(`kube-proxy's iptables mode has ${what}`, LEGACY_ADVICE)
  })
}

const LEGACY_ADVICE =
  'they translate Service traffic beside kprobe, which writes to nf_tables and does not change them: stop kube-proxy, then remove them ' +
  `with ${REMOVES_ALL} where \`iptables\` is iptables-legacy, or restart the node`

function legacy({ chains, legacyTables, writesIptables }: Neighborhood): readonly Neighbor[] {
  if (legacyTables.length === 0) return []
  const isBeside = chains.some(
    ({ table, chain }) => chain.hook !== undefined && ['nat', 'filter', 'mangle'].includes(table),
  )
  const names = legacyTables.map(({ family, name }) => `${family} ${name}`).join(', ')
  const what = `legacy iptables tables are in use: ${names}`
  if (isBeside) return [warning(`${what}, beside those of iptables-nft`, ONE_FLAVOR)]
  return writesIptables
    ? [warning(`${what}, beside those of iptables-nft, which kprobe writes in this mode`, ONE_FLAVOR)]
    : [note(what, ONE_FLAVOR)]
}

const ONE_FLAVOR =
  'both see the same packets, in an order that is hard to predict; use one flavor of iptables (update-alternatives)'

/** Names the programs that docs/neighbors.md describes. */
function programs(around: Neighborhood): readonly Neighbor[] {
  return programsOf(around).map(({ name, by, effect, conflict }) => {
    const what = `${name} is on this node (${by})`
    return conflict === undefined ? note(what, effect) : warning(what, `${conflict}; ${effect}`)
  })
}

function tablesOf(chains: readonly SurveyedChain[]): readonly string[] {
  return [...new Set(chains.map(({ family, table }) => `${family} ${table}`))].sort()
}
