import type { Family, Ip } from '../base/ip.ts'
import {
  NF_INET_LOCAL_IN,
  NF_INET_LOCAL_OUT,
  NF_INET_POST_ROUTING,
  NF_INET_PRE_ROUTING,
  NFT_TABLE_F_DORMANT,
} from '../kernel/nft/constants.ts'
import type { Chain, NftFamily, Table } from '../kernel/nft/state.ts'
import { createTracer } from '../kernel/nft/trace.ts'
import { printRule } from '../kernel/xt/print.ts'
import {
  CHAIN_EARLY_POSTROUTING,
  CHAIN_OUTPUT,
  CHAIN_POSTROUTING,
  CHAIN_PREROUTING,
} from '../modes/common/chain-names.ts'
import { NFT_FAMILIES, tableOf } from '../modes/common/family.ts'
import type { ChainNames } from '../modes/iptables/layout.ts'
import { createXtTracer } from '../modes/iptables/trace-tables.ts'
import type { IpvsState } from '../modes/ipvs/state.ts'
import { createIpvsTracer } from '../modes/ipvs/trace.ts'
import { CHAIN_INPUT } from '../modes/userspace/layout.ts'
import { type ReadChain, targetOf } from './iptables-chains.ts'
import type { Hook, ReadRules } from './reach.ts'

/** Rules of tables of our own, of nftables mode or userspace. */
export function rulesOfTables(tables: readonly Table[]): ReadRules {
  return {
    tracer: createTracer({ tables: tables.map(asleep) }),
    localIps: new Set(),
    obstacle: remembered((family, hook) => tableObstacle(tables, family, hook)),
  }
}

/** Rules of IPVS mode; `chains` are those of iptables where it writes them. */
export function rulesOfIpvs(
  state: IpvsState,
  chains: readonly ReadChain[],
  localIps: readonly Ip[],
): ReadRules {
  const tables = state.ruleset.tables.map(asleep)
  const common = chains.length === 0 ? undefined : traceable(chains)
  return {
    tracer: createIpvsTracer({ ...state, ruleset: { tables } }, common),
    localIps: new Set(localIps),
    obstacle: remembered((family, hook) => tableObstacle(state.ruleset.tables, family, hook)),
  }
}

/** Rules of iptables mode: our chains, and what leads to them. */
export function rulesOfChains(chains: readonly ReadChain[], names: ChainNames): ReadRules {
  const made = traceable(chains)
  return {
    tracer: createXtTracer(() => made),
    localIps: new Set(),
    obstacle: remembered((family, hook) => chainObstacle(chains, names, { family, hook })),
    rejectsOutsideOnly: true,
  }
}

/** What all Services share and is not as it must be: other rules than those that lead to endpoints included. */
export function damageOfTables(tables: readonly Table[], families: readonly NftFamily[]): readonly string[] {
  const [any] = tables
  if (any === undefined) return []
  const missing = families
    .filter(family => !tables.some(table => table.family === family))
    .map(family => `there is no table ${family} ${any.name}`)
  return [...missing, ...tables.flatMap(damageOf)]
}

const HOOK_CHAINS = [
  [CHAIN_PREROUTING, NF_INET_PRE_ROUTING],
  [CHAIN_OUTPUT, NF_INET_LOCAL_OUT],
] as const

/** userspace mode has nothing to masquerade, and listeners that nobody may reach but through the rules. */
function hookChainsOf({ sets }: Table): readonly (readonly [name: string, hooknum: number])[] {
  if (sets.has('listeners')) return [...HOOK_CHAINS, [CHAIN_INPUT, NF_INET_LOCAL_IN]]
  const behind = sets.has('cluster-ips') ? [CHAIN_EARLY_POSTROUTING, CHAIN_POSTROUTING] : [CHAIN_POSTROUTING]
  return [...HOOK_CHAINS, ...behind.map(name => [name, NF_INET_POST_ROUTING] as const)]
}

function damageOf(table: Table): readonly string[] {
  if (isDormant(table)) return [dormantText(table)]
  const missing = hookChainsOf(table)
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
function asleep(table: Table): Table {
  if (!isDormant(table)) return table
  const chains = [...table.chains].map(([name, chain]) => [name, { ...chain, hook: undefined }] as const)
  return { ...table, chains: new Map(chains) }
}

interface HookChains {
  readonly hooknum: number
  readonly base: string
  readonly builtin: string
}

const HOOK_OF: Readonly<Record<Hook, HookChains>> = {
  prerouting: { hooknum: NF_INET_PRE_ROUTING, base: CHAIN_PREROUTING, builtin: 'PREROUTING' },
  output: { hooknum: NF_INET_LOCAL_OUT, base: CHAIN_OUTPUT, builtin: 'OUTPUT' },
}

function familyName(family: Family): NftFamily {
  return family === 'IPv4' ? 'ip' : 'ip6'
}

function tableObstacle(tables: readonly Table[], of: Family, hook: Hook): string | undefined {
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

/** The rules of others in chains that all share are theirs to judge: only ways to ours are followed. */
function traceable(chains: readonly ReadChain[]) {
  const ours = chains.filter(({ ours }) => ours)
  const isOurs = new Set(ours.map(({ family, table, name }) => `${family} ${table} ${name}`))
  const shared = chains
    .filter(({ ours, policy }) => !ours && policy !== undefined)
    .map(chain => ({
      ...chain,
      rules: chain.rules.filter(({ rule }) =>
        isOurs.has(`${chain.family} ${chain.table} ${targetOf(rule) ?? ''}`),
      ),
    }))
  return {
    chains: [...ours, ...shared].map(({ family, table, name, rules }) => {
      return { family, table, name, rules: rules.map(({ rule }) => rule), last: [] }
    }),
    jumps: [],
    print: printRule,
  }
}

interface Side {
  readonly family: Family
  readonly hook: Hook
}

function chainObstacle(chains: readonly ReadChain[], names: ChainNames, side: Side): string | undefined {
  const family = familyName(side.family)
  const { builtin } = HOOK_OF[side.hook]
  if (!leadsTo(natChain(chains, family, builtin), names.services))
    return `chain ${family} nat ${builtin} has no jump to ${names.services}`
  return emptyNat(chains, family, names.services)
}

function natChain(chains: readonly ReadChain[], family: NftFamily, name: string): ReadChain | undefined {
  return chains.find(chain => chain.family === family && chain.table === 'nat' && chain.name === name)
}

function emptyNat(chains: readonly ReadChain[], family: NftFamily, name: string): string | undefined {
  const count = natChain(chains, family, name)?.rules.length ?? 0
  return count === 0 ? `chain ${family} nat ${name} is empty` : undefined
}

function leadsTo(chain: ReadChain | undefined, target: string): boolean {
  return chain?.rules.some(({ rule }) => targetOf(rule) === target) === true
}

/** Of the chains of iptables mode, as damageOfTables, in the families that have any. */
export function damageOfChains(chains: readonly ReadChain[], names: ChainNames): readonly string[] {
  const families = NFT_FAMILIES.filter(family => natChain(chains, family, names.services) !== undefined)
  return families.flatMap(family => {
    const ways = [
      ['PREROUTING', names.services],
      ['OUTPUT', names.services],
      ['POSTROUTING', names.postrouting],
    ] as const
    const missing = ways
      .filter(([builtin, to]) => !leadsTo(natChain(chains, family, builtin), to))
      .map(([builtin, to]) => `chain ${family} nat ${builtin} has no jump to ${to}`)
    return [
      ...missing,
      ...[names.postrouting, names.markMasq].flatMap(name => emptyNat(chains, family, name) ?? []),
    ]
  })
}

function remembered(compute: ReadRules['obstacle']): ReadRules['obstacle'] {
  const known = new Map<string, string | undefined>()
  return (family, hook) => {
    const key = `${family} ${hook}`
    if (!known.has(key)) known.set(key, compute(family, hook))
    return known.get(key)
  }
}
