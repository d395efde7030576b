import type { Clock } from '../base/clock.ts'
import { NF_INET_POST_ROUTING } from '../kernel/nft/constants.ts'
import { listAllTables } from '../kernel/nft/list.ts'
import type { AnyTable } from '../kernel/nft/state.ts'
import { surveyChains } from '../kernel/nft/survey.ts'
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
  readonly attemptsMax?: number
  /** Whether a table of this name only follows packets, and goes with the command that made it. */
  readonly isPassing: (table: string) => boolean
  /** Gives a table that is known and need not be read. */
  readonly known?: (table: Pick<AnyTable, 'family' | 'name'>) => AnyTable | undefined
}

const OUTSIDE =
  'nothing outside of nf_tables decides about packets: legacy iptables, IPVS, eBPF, tc and routes are not read'
const IP_FAMILIES: readonly string[] = ['ip', 'ip6', 'inet']

/** Reads what a proof follows packets through. */
export async function readRules(reading: RulesReading): Promise<KernelRules> {
  const { value, unsettled } = await listAllTables({ ...reading, ipsets: undefined })
  const others = (await surveyChains(reading.connection)).filter(
    ({ family, chain }) =>
      chain.hook !== undefined &&
      (!IP_FAMILIES.includes(family) || chain.hook.hooknum > NF_INET_POST_ROUTING),
  )
  return {
    tables: value.filter(({ name }) => !reading.isPassing(name)),
    unsettled,
    assumptions: [
      OUTSIDE,
      ...others.map(
        ({ family, table, chain }) =>
          `${family} ${table} ${chain.name} lets packets pass: its hook is not read`,
      ),
      ...(unsettled
        ? ['other programs changed nf_tables meanwhile: the rules may be of several moments']
        : []),
    ],
  }
}
