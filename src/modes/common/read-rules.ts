import type { Family, Ip } from '../../base/ip.ts'
import { NF_INET_LOCAL_OUT, NF_INET_PRE_ROUTING, NFT_TABLE_F_DORMANT } from '../../kernel/nft/constants.ts'
import type { Chain, NftFamily, Table } from '../../kernel/nft/state.ts'
import { createTracer, type Tracer } from '../../kernel/nft/trace.ts'
import { CHAIN_OUTPUT, CHAIN_PREROUTING } from './chain-names.ts'
import { tableOf } from './family.ts'

/** Where packets meet the rules: from other hosts and pods, or from processes of this node. */
export type Hook = 'prerouting' | 'output'

/** The rules of one mode as they were read from the kernel. */
export interface ReadRules {
  readonly tracer: Tracer
  /** Addresses that interfaces of this node have, as far as the rules depend on them. */
  readonly localIps: ReadonlySet<Ip>
  /** What keeps every packet of a family from the rules about Services; undefined when nothing does. */
  readonly obstacle: (family: Family, hook: Hook) => string | undefined
  /** External addresses and NodePorts without endpoints are rejected on the way in only, as kube-proxy does. */
  readonly rejectsOutsideOnly?: true
}

/** Rules of a mode that writes tables of our own alone. */
export function rulesOfTables(tables: readonly Table[]): ReadRules {
  return {
    tracer: createTracer({ tables: tables.map(asleep) }),
    localIps: new Set(),
    obstacle: remembered((family, hook) => tableObstacle(tables, family, hook)),
  }
}

/** What all Services share and is not as it must be: other rules than those that lead to endpoints included. */
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

/** A chain that a mode's tables must have, and the number of its hook. */
export type HookChain = readonly [name: string, hooknum: number]

/** Those of every mode. */
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

/** A dormant table has no hooks. */
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

/** This chain and all that its rules name, and so on. */
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
