import { count } from '../../base/text.ts'
import { listIpsetNames } from '../../kernel/ipset/client.ts'
import { NF_DROP } from '../../kernel/nft/constants.ts'
import type { HookFamily, TableName } from '../../kernel/nft/state.ts'
import {
  type ForeignChain,
  type ForeignTable,
  planRemoval,
  type Removal,
  type SurveyedChain,
  surveyTable,
} from '../../kernel/nft/survey.ts'
import { Connection } from '../../netlink/connection.ts'
import {
  type ChainOutline,
  DUMMY_DEVICE,
  IPTABLES_TABLES,
  isKubeProxyChain,
  isKubeProxyIpset,
  isKubeProxyTable,
  KUBE_PROXY,
} from '../common/kube-proxy.ts'
import { commitAsRead, deleteTable, withNftClient } from '../common/writers.ts'
import type { KernelAccess } from '../mode.ts'
import { MODES, proxyOfTable } from '../registry.ts'
import { chainNames, namedPrefixOf } from '../xt-common/layout.ts'
import { DROP_ADVICE, droppingChains, hookName } from './dropping-chains.ts'
import { kubeProxyChains, type LegacyTable, readLegacyTables } from './legacy-iptables.ts'
import { orderAdvice } from './nat-order.ts'

/** kube-proxy's objects in this network namespace. A running kube-proxy uses them, or an earlier one left them. */
export interface Leftovers {
  /** Tables of kube-proxy's nftables mode. */
  readonly nftables: readonly TableName[]
  /** kube-proxy's chains and rules in tables of iptables-nft; only tables that contain some. */
  readonly iptables: readonly IptablesLeftover[]
  readonly elsewhere: Elsewhere
}

/** Leftovers in other parts of the kernel than nf_tables. */
interface Elsewhere {
  /** Any program may own these. */
  readonly legacyTables: readonly LegacyTable[]
  /** Lines of /proc/net/ip_vs; any program may own them. */
  readonly virtualServers: readonly string[]
  readonly ipsets: readonly string[]
  /** The device of kube-proxy's IPVS mode exists. */
  readonly device: boolean
}

interface IptablesLeftover extends Removal {
  readonly table: TableName
}

interface LookOptions extends KernelAccess {
  /** The name of kprobe's tables, which is also that of kube-proxy's. */
  readonly tableName: string
  /** Reads the lines of a file of /proc; none if it does not exist. */
  readonly readLines: (path: string) => Promise<readonly string[]>
  /** IPVS and the ipsets are in use: their objects are no leftovers. */
  readonly ignoreIpvs?: boolean
}

/** Finds all leftovers. Changes nothing. Throws NetlinkError and SystemError. */
export async function lookForLeftovers(options: LookOptions): Promise<Leftovers> {
  const transport = options.sockets.netfilter()
  try {
    const connection = new Connection({ transport, clock: options.clock })
    const elsewhere = await lookElsewhere(connection, options.readLines)
    return {
      ...(await lookInNfTables(connection, options.tableName)),
      elsewhere: { ...elsewhere, ...(options.ignoreIpvs === true ? NO_IPVS : {}) },
    }
  } finally {
    await transport.close()
  }
}

const NO_IPVS: Partial<Elsewhere> = { virtualServers: [], ipsets: [], device: false }

/** Finds leftovers in nf_tables: only these can be removed here. */
async function lookInNfTables(
  connection: Connection,
  tableName: string,
): Promise<Pick<Leftovers, 'nftables' | 'iptables'>> {
  const survey = (place: TableName): Promise<ForeignTable> => surveyTable(connection, place)
  const own: ForeignTable[] = []
  for (const family of ['ip', 'ip6'] as const) own.push(await survey({ family, name: tableName }))
  const shared: ForeignTable[] = []
  for (const place of IPTABLES_TABLES) shared.push(await survey(place))
  return { nftables: tablesOfKubeProxy(own), iptables: shared.map(leftIn).filter(isSomething) }
}

function tablesOfKubeProxy(tables: readonly ForeignTable[]): readonly TableName[] {
  return tables
    .filter(({ chains }) => isKubeProxyTable(chains.map(outlineOf)))
    .map(({ family, name }) => ({ family, name }))
}

function outlineOf({ name, rules }: ForeignChain): ChainOutline {
  return { name, sets: rules.flatMap(({ sets }) => sets) }
}

function leftIn(table: ForeignTable): IptablesLeftover {
  const { family, name } = table
  return { ...planRemoval(table, KUBE_PROXY), table: { family, name } }
}

function isSomething({ chains, kept }: IptablesLeftover): boolean {
  return chains.length > 0 || kept.length > 0
}

export async function lookElsewhere(
  connection: Connection,
  readLines: LookOptions['readLines'],
): Promise<Elsewhere> {
  const servers = await readLines('/proc/net/ip_vs')
  const devices = await readLines('/proc/net/dev')
  return {
    legacyTables: await readLegacyTables(readLines),
    virtualServers: servers.filter(line => /^(TCP|UDP|SCTP|FWM)\b/.test(line)),
    ipsets: (await listIpsetNames(connection)).filter(isKubeProxyIpset).sort(),
    device: devices.some(line => line.split(':')[0]?.trim() === DUMMY_DEVICE),
  }
}

const REMOVES_NFT = '`kprobe cleanup --leftovers-of=kube-proxy`'
const REMOVES_ALL = '`kube-proxy --cleanup`'

const REMOVES_IPTABLES = '`kprobe cleanup --proxy-mode=iptables`'

/** Owner of the chains of iptables mode. The chains do not name it; only kprobe leaves a record. */
export type IptablesOwner = 'kprobe' | 'unknown'

/** One leftover, its owner, and the command that removes it. */
export interface LeftoverText {
  readonly by: 'kube-proxy' | 'kprobe'
  readonly what: string
  readonly command: string
}

export function leftoverTexts(
  { nftables, iptables, elsewhere }: Leftovers,
  owner: IptablesOwner = 'unknown',
): readonly LeftoverText[] {
  const kubeProxys = (command: string) => (what: string) => ({ by: 'kube-proxy' as const, what, command })
  return [
    ...nftables.map(table => `table ${nameOf(table)} of its nftables mode`).map(kubeProxys(REMOVES_NFT)),
    ...iptables.filter(({ chains }) => chains.length > 0).map(left => iptablesText(left, owner)),
    ...elsewhereTexts(elsewhere).map(kubeProxys(REMOVES_ALL)),
    ...ipvsTexts(elsewhere).map(kubeProxys(REMOVES_NFT)),
  ]
}

function iptablesText(left: IptablesLeftover, owner: IptablesOwner): LeftoverText {
  const what = `${chainsOf(left)} of its iptables mode`
  return owner === 'kprobe'
    ? { by: 'kprobe', what, command: REMOVES_IPTABLES }
    : {
        by: 'kube-proxy',
        what: `${what}, or of kprobe's, whose chains have the same names`,
        command: REMOVES_NFT,
      }
}

const NAMES_SHOWN = 3

function elsewhereTexts({ legacyTables, virtualServers }: Elsewhere): readonly string[] {
  return [
    ...legacyTables.flatMap(legacyTexts),
    ...(virtualServers.length === 0
      ? []
      : [
          `${count(virtualServers.length, 'IPVS virtual server')}, if they are its; the command removes all virtual servers, those of other programs too`,
        ]),
  ]
}

function legacyTexts(table: LegacyTable): readonly string[] {
  const { chains } = table
  if (typeof chains === 'string')
    return [
      `its chains, if any, in legacy iptables, table ${nameOf(table)}, which cannot be read (${chains})`,
    ]
  const left = kubeProxyChains(table)
  return left.length === 0
    ? []
    : [`${count(left.length, 'chain')} of its iptables mode in legacy iptables, table ${nameOf(table)}`]
}

/** Lists objects that only an IPVS mode with kube-proxy's names leaves. Pure. */
export function ipvsTexts({ ipsets, device }: Elsewhere): readonly string[] {
  const more = ipsets.length > NAMES_SHOWN ? ', ...' : ''
  const names = `${ipsets.slice(0, NAMES_SHOWN).join(', ')}${more}`
  return [
    ...(ipsets.length === 0 ? [] : [`${count(ipsets.length, 'ipset')} of its IPVS mode (${names})`]),
    ...(device ? [`the network device ${DUMMY_DEVICE} of its IPVS mode`] : []),
  ]
}

export function removedTexts({
  nftables,
  iptables,
}: Pick<Leftovers, 'nftables' | 'iptables'>): readonly string[] {
  return [
    ...nftables.map(table => `table ${nameOf(table)}`),
    ...iptables.filter(({ chains }) => chains.length > 0).map(chainsOf),
  ]
}

/** Lists what a removal keeps because other rules use it. Pure. */
export function keptTexts({ iptables }: Pick<Leftovers, 'iptables'>): readonly string[] {
  return iptables.flatMap(({ table, kept }) =>
    kept.map(({ chain, usedBy }) => `chain ${chain} in table ${nameOf(table)}, which ${usedBy} leads to`),
  )
}

function chainsOf({ table, chains, jumps }: IptablesLeftover): string {
  const rules = jumps === 0 ? '' : ` and ${count(jumps, 'rule')} that led to them`
  return `${count(chains.length, 'chain')}${rules} in table ${nameOf(table)}`
}

function nameOf({ family, name }: TableName): string {
  return `${family} ${name}`
}

/** Deletes kube-proxy's objects in nf_tables; chains of iptables mode only with `iptables`. Lists removed and kept ones. */
export async function removeLeftovers(
  context: KernelAccess,
  tableName: string,
  { iptables }: { readonly iptables: boolean },
): Promise<Pick<Leftovers, 'nftables' | 'iptables'>> {
  const transport = context.sockets.netfilter()
  const connection = new Connection({ transport, clock: context.clock })
  const read = async () => {
    const there = await lookInNfTables(connection, tableName)
    const found = iptables ? there : { ...there, iptables: [] }
    const chains = found.iptables.flatMap(({ transaction }) => transaction)
    return { value: found, transaction: [...chains, ...found.nftables.map(deleteTable)] }
  }
  try {
    return await withNftClient(context, client => commitAsRead(client, read))
  } finally {
    await transport.close()
  }
}

/** Another program on this node that changes packets before or after kprobe. */
interface Neighbor {
  readonly severity: 'warning' | 'note'
  readonly what: string
  readonly advice: string
}

export interface Neighborhood {
  readonly chains: readonly SurveyedChain[]
  /** The tables of other programs, with their rules. */
  readonly tables?: readonly ForeignTable<HookFamily>[]
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
  readonly legacyTables: readonly LegacyTable[]
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

function tablesOf(chains: readonly SurveyedChain[]): readonly string[] {
  return [...new Set(chains.map(({ family, table }) => `${family} ${table}`))].sort()
}
