import { listIpsetNames } from '../../kernel/ipset/names.ts'
import { planRemoval, type Removal } from '../../kernel/nft/leftover-plan.ts'
import { type ForeignChain, type ForeignTable, surveyTable } from '../../kernel/nft/leftover-survey.ts'
import type { TableName } from '../../kernel/nft/state.ts'
import { Connection } from '../../netlink/connection.ts'
import {
  type ChainOutline,
  DUMMY_DEVICE,
  IPTABLES_TABLES,
  isKubeProxyIpset,
  isKubeProxyTable,
  KUBE_PROXY,
} from '../common/kube-proxy.ts'
import type { ModeContext } from '../mode.ts'
import { type LegacyTable, readLegacyTables } from './legacy-iptables.ts'

/** kube-proxy's objects in this network namespace. A running kube-proxy uses them, or an earlier one left them. */
export interface Leftovers {
  /** Tables of kube-proxy's nftables mode. */
  readonly nftables: readonly TableName[]
  /** kube-proxy's chains and rules in tables of iptables-nft; only tables that contain some. */
  readonly iptables: readonly IptablesLeftover[]
  readonly elsewhere: Elsewhere
}

/** Leftovers in other parts of the kernel than nf_tables. */
export interface Elsewhere {
  /** Any program may own these. */
  readonly legacyTables: readonly LegacyTable[]
  /** Lines of /proc/net/ip_vs; any program may own them. */
  readonly virtualServers: readonly string[]
  /** Names of ipsets. */
  readonly ipsets: readonly string[]
  /** The device of kube-proxy's IPVS mode exists. */
  readonly device: boolean
}

export interface IptablesLeftover extends Removal {
  readonly table: TableName
}

interface LookOptions extends Pick<ModeContext, 'sockets' | 'clock'> {
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
export async function lookInNfTables(
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

/** Finds leftovers in other parts of the kernel than nf_tables. */
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
