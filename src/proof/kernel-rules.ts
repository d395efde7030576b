import type { Clock } from '../base/clock.ts'
import type { IpvsHeld } from '../kernel/evaluate/ipvs.ts'
import type { IpsetClient } from '../kernel/ipset/client.ts'
import type { IpvsClient } from '../kernel/ipvs/client.ts'
import type { AddressReader } from '../kernel/link/addresses.ts'
import { NF_INET_POST_ROUTING } from '../kernel/nft/constants.ts'
import type { IpsetNames } from '../kernel/nft/ipsets.ts'
import { listAllTables } from '../kernel/nft/list.ts'
import type { AnyTable } from '../kernel/nft/state.ts'
import { type SurveyedChain, surveyChains } from '../kernel/nft/survey.ts'
import type { Connection } from '../netlink/connection.ts'

/** The rules of all programs, and what reading them leaves open. */
export interface KernelRules {
  readonly tables: readonly AnyTable[]
  /** Other programs, or the daemon itself, committed during each attempt: the tables may be of several moments. */
  readonly unsettled: boolean
  /** What is not read, by name. */
  readonly assumptions: readonly string[]
}

interface RulesReading {
  readonly connection: Connection
  readonly clock: Clock
  /** Names of ipsets, where these are read, too. */
  readonly ipsets?: IpsetNames | undefined
  readonly attemptsMax?: number
  /** Whether a table of this name only follows packets, and goes with the command that made it. */
  readonly isPassing: (table: string) => boolean
  /** Gives a table that is known and need not be read. */
  readonly known?: (table: Pick<AnyTable, 'family' | 'name'>) => AnyTable | undefined
}

const OUTSIDE =
  'nothing outside of nf_tables decides about packets: legacy iptables, IPVS, eBPF, tc and routes are not read'
const OUTSIDE_IPVS =
  'nothing outside of nf_tables, IPVS and ipsets decides about packets: legacy iptables, eBPF, tc and routes are not read'
const IP_FAMILIES: readonly string[] = ['ip', 'ip6', 'inet']

/** Reads what a proof follows packets through. */
export async function readRules(reading: RulesReading): Promise<KernelRules> {
  const { value, unsettled } = await listAllTables({ ...reading, ipsets: reading.ipsets })
  const chains = await surveyChains(reading.connection)
  return {
    tables: value.filter(({ name }) => !reading.isPassing(name)),
    unsettled,
    assumptions: [
      ...assumptionsOf(chains, reading.ipsets !== undefined),
      ...(unsettled
        ? ['other programs changed nf_tables meanwhile: the rules may be of several moments']
        : []),
    ],
  }
}

/** Says what rules leave open, whatever they are. */
export function assumptionsOf(chains: readonly SurveyedChain[], usesIpvs: boolean): readonly string[] {
  const others = chains.filter(
    ({ family, chain }) =>
      chain.hook !== undefined &&
      (!IP_FAMILIES.includes(family) || chain.hook.hooknum > NF_INET_POST_ROUTING),
  )
  return [
    usesIpvs ? OUTSIDE_IPVS : OUTSIDE,
    ...others.map(
      ({ family, table, chain }) =>
        `${family} ${table} ${chain.name} lets packets pass: its hook is not read`,
    ),
  ]
}

export interface IpvsReading {
  readonly ipset: Pick<IpsetClient, 'headers' | 'list'>
  readonly ipvs: Pick<IpvsClient, 'servers' | 'destinations'>
  readonly addresses: Pick<AddressReader, 'read'>
}

/** Reads what decides outside of nf_tables, of all programs. Ipsets of types that kprobe does not read are left out. */
export async function readIpvs({ ipset, ipvs, addresses }: IpvsReading): Promise<IpvsHeld> {
  const { headers } = await ipset.headers()
  const servers = await ipvs.servers()
  const destinations = await ipvs.destinations(servers)
  return {
    ipsets: await ipset.list(headers.map(({ set }) => set.name)),
    servers: servers.map((server, index) => ({
      server,
      destinations: (destinations[index] ?? []).map(({ destination }) => destination),
    })),
    addresses: await addresses.read(),
  }
}
