import type { Family, Ip } from '../../base/ip.ts'
import { NF_INET_LOCAL_OUT, NF_INET_PRE_ROUTING, NFT_TABLE_F_DORMANT } from '../../kernel/nft/constants.ts'
import type { Chain, NftFamily, Table } from '../../kernel/nft/state.ts'
import { createTracer, type Tracer } from '../../kernel/nft/trace.ts'
import { CHAIN_OUTPUT, CHAIN_PREROUTING } from './chain-names.ts'
import { tableOf } from './family.ts'

/** Where packets enter the rules: from other hosts and pods, or from processes of this node. */
export type Hook = 'prerouting' | 'output'

/** The rules of one mode as they were read from the kernel. */
export interface ReadRules {
  readonly tracer: Tracer
  /** The addresses of interfaces of this node, as far as the rules depend on them. */
  readonly localIps: ReadonlySet<Ip>
  /**
   * Gives the reason why no packet of a family reaches the rules about Services; undefined when packets do.
   */
  readonly obstacle: (family: Family, hook: Hook) => string | undefined
  /**
   * The rules reject connections to external addresses and node ports without endpoints only on the way in,
   * as kube-proxy does.
   */
  readonly rejectsOutsideOnly?: true
}

/** Makes ReadRules for a mode that writes only tables of our own. */
export function rulesOfTables(tables: readonly Table[]): ReadRules {
  return {
    tracer: createTracer({ tables: tables.map(asleep) }),
    localIps: new Set(),
    obstacle: remembered((family, hook) => tableObstacle(tables, family, hook)),
  }
}

/** Lists damage to the shared rules, including rules that do not lead to endpoints. */
export function damageOfTables(
  tables: readonly Table[],
  families: readonly NftFamily[],
  hookChains: readonly HookChain[],
): readonly string[] {
  const [any] = tables
  if (any === undefined) return []
  const missing = families
    .filter(family => !tables.some(table => table.family === family))
    .map(family => `there is no table ${family} ${any.name}`)
  return [...missing, ...tables.flatMap(table => damageOf(table, hookChains))]
}

/** A chain that the tables of a mode must have, and the number of its hook. */
export type HookChain = readonly [name: string, hooknum: number]

/** The hook chains that every mode has. */
export const HOOK_CHAINS: readonly HookChain[] = [
  [CHAIN_PREROUTING, NF_INET_PRE_ROUTING],
  [CHAIN_OUTPUT, NF_INET_LOCAL_OUT],
]

function damageOf(table: Table, hookChains: readonly HookChain[]): readonly string[] {
  if (isDormant(table)) return [dormantText(table)]
  const missing = hookChains
    .filter(([name, hook]) => table.chains.get(name)?.hook?.hooknum !== hook)
    .map(([name]) => missingText(table, name))
  const empty = [...table.chains.values()].filter(({ rules }) => rules.length === 0)
  return [...missing, ...empty.map(chain => emptyText(table, chain.name))]
}

function missingText({ family, name: table }: Table, chain: string): string {
  return `there is no chain ${family} ${table} ${chain} at its hook`
}

function emptyText({ family, name: table }: Table, chain: string): string {
  return `chain ${family} ${table} ${chain} is empty`
}

function isDormant({ flags }: Table): boolean {
  return (flags & NFT_TABLE_F_DORMANT) !== 0
}

function dormantText({ family, name }: Table): string {
  return `table ${family} ${name} is dormant`
}

/** Gives a dormant table without its hooks. */
export function asleep(table: Table): Table {
  if (!isDormant(table)) return table
  const chains = [...table.chains].map(([name, chain]) => [name, { ...chain, hook: undefined }] as const)
  return { ...table, chains: new Map(chains) }
}

interface HookChains {
  readonly hooknum: number
  readonly base: string
  readonly builtin: string
}

export const HOOK_OF: Readonly<Record<Hook, HookChains>> = {
  prerouting: { hooknum: NF_INET_PRE_ROUTING, base: CHAIN_PREROUTING, builtin: 'PREROUTING' },
  output: { hooknum: NF_INET_LOCAL_OUT, base: CHAIN_OUTPUT, builtin: 'OUTPUT' },
}

export function familyName(family: Family): NftFamily {
  return family === 'IPv4' ? 'ip' : 'ip6'
}

export function tableObstacle(tables: readonly Table[], of: Family, hook: Hook): string | undefined {
  const family = familyName(of)
  const table = tableOf({ tables }, family)
  if (table === undefined) return `there is no table of family ${family}`
  if (isDormant(table)) return dormantText(table)
  const { hooknum, base } = HOOK_OF[hook]
  const first = table.chains.get(base)
  if (first?.hook?.hooknum !== hooknum) return missingText(table, base)
  const empty = chainsFrom(first, table).find(({ rules }) => rules.length === 0)
  return empty === undefined ? undefined : emptyText(table, empty.name)
}

/** Gives this chain and all chains that its rules reach. */
function chainsFrom(first: Chain, { chains }: Table): readonly Chain[] {
  const found = new Set([first])
  for (const { rules } of found)
    for (const { expressions } of rules)
      for (const each of expressions) {
        const next = each.kind === 'verdict' ? chains.get(each.verdict.chain ?? '') : undefined
        if (next !== undefined) found.add(next)
      }
  return [...found]
}

export function remembered(compute: ReadRules['obstacle']): ReadRules['obstacle'] {
  const known = new Map<string, string | undefined>()
  return (family, hook) => {
    const key = `${family} ${hook}`
    if (!known.has(key)) known.set(key, compute(family, hook))
    return known.get(key)
  }
}
