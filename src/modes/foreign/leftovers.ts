import { count } from '../../base/text.ts'
import { listIpsetNames } from '../../kernel/ipset/client.ts'
import type { TableName } from '../../kernel/nft/state.ts'
import {
  type ForeignChain,
  type ForeignTable,
  planRemoval,
  type Removal,
  surveyTable,
} from '../../kernel/nft/survey.ts'
import { Connection } from '../../netlink/connection.ts'
import {
  type ChainOutline,
  DUMMY_DEVICE,
  IPTABLES_TABLES,
  isKubeProxyIpset,
  isKubeProxyTable,
  KUBE_PROXY,
} from '../common/kube-proxy.ts'
import { commitAsRead, deleteTable, withNftClient } from '../common/writers.ts'
import type { KernelAccess } from '../mode.ts'
import { kubeProxyChains, type LegacyTable, readLegacyTables } from './legacy-iptables.ts'

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

export const REMOVES_NFT = '`kprobe cleanup --leftovers-of=kube-proxy`'
export const REMOVES_ALL = '`kube-proxy --cleanup`'
export const REMOVES_IPTABLES = '`kprobe cleanup --proxy-mode=iptables`'

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
