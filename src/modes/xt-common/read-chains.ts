import { PersistentMap } from '../../base/collections.ts'
import { IpsetClient } from '../../kernel/ipset/client.ts'
import { createNftClient } from '../../kernel/nft/client.ts'
import { NF_DROP } from '../../kernel/nft/constants.ts'
import { readCompiled } from '../../kernel/nft/decode.ts'
import type { NameOfIpset } from '../../kernel/nft/ipset-match.ts'
import type { Chain, NftFamily, Observed, ObservedChain, Rule, Table } from '../../kernel/nft/state.ts'
import { compileRule } from '../../kernel/xt/compile.ts'
import { printRule, printTables } from '../../kernel/xt/print.ts'
import { readRule } from '../../kernel/xt/read.ts'
import { targetChain, type XtRule } from '../../kernel/xt/rule.ts'
import {
  builtinChains,
  builtinHook,
  type XtChain,
  type XtJump,
  type XtPlace,
  type XtTableName,
} from '../../kernel/xt/scope.ts'
import { NFT_FAMILIES } from '../common/tables.ts'
import type { TracedRules } from '../common/traced-rules.ts'
import type { ClientContext } from '../common/writers.ts'
import { type ChainNames, isIpvsChain, isOurChain, isServiceChain } from './layout.ts'

/** A chain of a table of iptables as it was read, with the Services that it serves. */
export interface ReadChain {
  readonly family: NftFamily
  readonly table: XtTableName
  readonly name: string
  /**
   * Returns whether the chain belongs to the requested proxy. For the unnamed proxy that includes chains of an iptables or
   * IPVS mode, ours or kube-proxy's.
   */
  readonly ours: boolean
  /** Undefined for chains that packets enter only by jumps. */
  readonly policy: 'ACCEPT' | 'DROP' | undefined
  readonly rules: readonly ReadRule[]
}

export interface ReadRule {
  readonly rule: XtRule
  /** The rule as iptables-save prints it, without `-A CHAIN `. */
  readonly text: string
  /** `namespace/name:port`; several for a rule that Services share, none for a shared rule of all. */
  readonly services: readonly string[]
}

/** The order of iptables-save. */
const TABLES: readonly XtTableName[] = ['mangle', 'filter', 'nat']
const NO_CHAINS: ReadonlyMap<string, ObservedChain> = new Map()

interface ReadOptions {
  readonly names: ChainNames
  readonly nameOfIpset: NameOfIpset
}

/** Reads every chain of these tables, including those of other programs, in the order of iptables-save. Pure. */
export function readChains(observed: Observed, { names, nameOfIpset }: ReadOptions): readonly ReadChain[] {
  return NFT_FAMILIES.flatMap(family => {
    const services = new ServiceNaming(names)
    const read = TABLES.flatMap(table => tableChains({ observed, nameOfIpset, names }, family, table))
    for (const chain of read) services.learn(chain)
    services.spread(read)
    return read.map(chain => ({
      ...chain,
      rules: chain.rules.map(rule => ({ ...rule, services: services.ofRule(chain, rule.rule) })),
    }))
  })
}

interface Reading extends ReadOptions {
  readonly observed: Observed
}

function tableChains(
  { observed, nameOfIpset, names }: Reading,
  family: NftFamily,
  table: XtTableName,
): readonly ReadChain[] {
  const chains = observed.get(`${family} ${table}`)?.chains ?? NO_CHAINS
  const builtin = builtinChains(table).filter(name => chains.has(name))
  const others = [...chains.keys()].filter(name => !builtin.includes(name)).sort()
  return [...builtin, ...others].flatMap(name => {
    const chain = chains.get(name)
    if (chain === undefined) return []
    const { hook } = chain
    const policy = hook === undefined ? undefined : hook.policy === NF_DROP ? 'DROP' : 'ACCEPT'
    const rules = chain.rules.map(({ compiled }): ReadRule => {
      const rule = readRule(compiled, family, nameOfIpset)
      return { rule, text: printRule(rule, family), services: [] }
    })
    const isOfIpvs = names.proxy === undefined && isIpvsChain(table, name)
    return [{ family, table, name, ours: isOurChain(names, table, name) || isOfIpvs, policy, rules }]
  })
}

/** Matches the name of a Service and its port anywhere in a comment: `web traffic for shop/cart:http external ...`. */
const NAMED = /(?:^|\s)([a-z0-9][a-z0-9.-]*\/[a-z0-9][a-z0-9.-]*(?::[a-z0-9-]+)?)(?=\s|$)/

/**
 * Finds the Services of chains. Comments name Services. On a node with many endpoints the chains of endpoints have no
 * comments. The rules that lead to such a chain do, and a chain serves the same Service as the chains that lead to
 * it.
 */
class ServiceNaming {
  readonly #chains = new Map<string, Set<string>>()
  readonly #names: ChainNames

  constructor(names: ChainNames) {
    this.#names = names
  }

  learn({ table, name, rules }: ReadChain): void {
    if (!isServiceChain(this.#names, table, name)) return
    const services = rules.flatMap(({ rule }) => commented(rule) ?? [])
    if (services.length > 0) this.#chains.set(name, new Set(services))
  }

  /** Passes names from shared chains to chains of Services, and on. */
  spread(chains: readonly ReadChain[]): void {
    // Three jumps lead to an endpoint.
    for (let jumps = 0; jumps < 4; jumps++) {
      const found = new Map<string, Set<string>>()
      for (const chain of chains) {
        if (!chain.ours) continue
        for (const { rule } of chain.rules) {
          const target = targetChain(rule)
          if (target === undefined || this.#chains.has(target)) continue
          if (!isServiceChain(this.#names, chain.table, target)) continue
          const services = this.#own(chain, rule)
          if (services.length > 0) found.set(target, new Set([...(found.get(target) ?? []), ...services]))
        }
      }
      if (found.size === 0) return
      for (const [name, services] of found) this.#chains.set(name, services)
    }
  }

  ofRule(chain: ReadChain, rule: XtRule): readonly string[] {
    const own = this.#own(chain, rule)
    if (own.length > 0 || !chain.ours) return own
    const target = targetChain(rule)
    return target === undefined ? [] : [...(this.#chains.get(target) ?? [])].sort()
  }

  #own(chain: ReadChain, rule: XtRule): readonly string[] {
    const named = chain.ours ? commented(rule) : undefined
    return named === undefined ? [...(this.#chains.get(chain.name) ?? [])].sort() : [named]
  }
}

function commented({ matches }: XtRule): string | undefined {
  const comment = matches.find(match => match.kind === 'comment')
  return comment?.kind === 'comment' ? NAMED.exec(comment.text)?.[1] : undefined
}

export const XT_TABLES: readonly XtTableName[] = ['filter', 'nat', 'mangle']

export function placesOf(families: readonly NftFamily[]): readonly XtPlace[] {
  return families.flatMap(family => XT_TABLES.map(table => ({ family, table })))
}

/** Reads the tables of iptables-nft, with other programs' chains; `names` marks ours. Throws NetlinkError. */
export async function readIptables(
  context: ClientContext,
  families: readonly NftFamily[],
  names: ChainNames,
): Promise<readonly ReadChain[]> {
  return await observeIptables(context, families, (observed, nameOfIpset) =>
    readChains(observed, { names, nameOfIpset }),
  )
}

/** Reads tables together with the ipset names: rules contain only ipset numbers. */
async function observeIptables<T>(
  { sockets, clock }: ClientContext,
  families: readonly NftFamily[],
  read: (observed: Observed, nameOfIpset: NameOfIpset) => T,
): Promise<T> {
  const client = createNftClient({ transport: sockets.netfilter(), clock })
  const ipset = new IpsetClient({ transport: sockets.netfilter(), clock })
  try {
    return read((await client.listChains(placesOf(families))).observed, index => ipset.nameOf(index))
  } finally {
    await Promise.all([client.close(), ipset.close()])
  }
}

/** Prints the tables of each family as iptables-save does, including rules of other programs. */
export async function saveIptables(
  context: ClientContext,
  families: readonly NftFamily[],
): Promise<readonly string[]> {
  return await observeIptables(context, families, (observed, nameOfIpset) =>
    families.map(family => {
      const text = printTables(observed, family, nameOfIpset)
      return `# ${family === 'ip' ? 'iptables' : 'ip6tables'}\n${text}`
    }),
  )
}

export interface Traceable {
  /** Chains with their entries among the rules. */
  readonly chains: Iterable<XtChain>
  /** Jumps in the order in which they are inserted. */
  readonly jumps: Iterable<XtJump>
  /** Prints a rule as iptables-save does after `-A CHAIN `. */
  readonly print: (rule: XtRule, family: NftFamily) => string
}

type TracedChains = Pick<TracedRules, 'tables' | 'print' | 'lists'>

interface HeldTable {
  readonly family: NftFamily
  readonly name: XtTableName
  readonly chains: Map<string, readonly XtRule[]>
}

/** Translates chains of iptables to what nf_tables holds of them. A rule is translated when it is read. */
export function tracedChains({ chains: all, jumps, print }: Traceable): Required<TracedChains> {
  const held = new Map<string, HeldTable>()
  const tableOf = (family: NftFamily, name: XtTableName) => {
    const key = `${family} ${name}`
    const known = held.get(key) ?? { family, name, chains: new Map<string, readonly XtRule[]>() }
    held.set(key, known)
    return known.chains
  }
  for (const { family, table, name, rules, last } of all)
    tableOf(family, table).set(name, last.length === 0 ? rules : [...rules, ...last])
  for (const { family, table, chain, rule } of jumps) {
    const chains = tableOf(family, table)
    chains.set(chain, [rule, ...(chains.get(chain) ?? [])])
    // KUBE-FIREWALL may have no rules of ours.
    if (rule.target?.kind === 'jump' && !chains.has(rule.target.chain)) chains.set(rule.target.chain, [])
  }
  return {
    tables: [...held.values()].map(heldTable),
    lists: new Set([...held.values()].flatMap(({ chains }) => [...chains.values()].flatMap(listsIn))),
    print: ({ table, chain, rule = 0 }) => {
      const its = held.get(table)
      const one = its?.chains.get(chain)?.[rule - 1]
      return its && one && `-A ${chain} ${print(one, its.family)}`
    },
  }
}

function listsIn(rules: readonly XtRule[]): readonly string[] {
  return rules.flatMap(({ matches }) => matches.flatMap(its => (its.kind === 'recent' ? [its.name] : [])))
}

function heldTable({ family, name, chains }: HeldTable): Table {
  const ipsets: string[] = []
  const compile = (rule: XtRule): Rule => {
    const compiled = compileRule(rule, family, set => {
      if (!ipsets.includes(set)) ipsets.push(set)
      return ipsets.indexOf(set)
    })
    return readCompiled(compiled, index => ipsets[index])
  }
  return {
    family,
    name,
    flags: 0,
    comment: undefined,
    chains: new Map(
      [...chains].map(([chain, rules]) => [
        chain,
        lazyChain(chain, builtinHook(name, chain), () => rules.map(compile)),
      ]),
    ),
    sets: new Map(),
    elements: PersistentMap.empty(),
  }
}

/** Compiles the rules when they are read: a packet meets few chains of many. */
function lazyChain(name: string, hook: Chain['hook'], compile: () => readonly Rule[]): Chain {
  let rules: readonly Rule[] | undefined
  return {
    name,
    hook,
    get rules() {
      rules ??= compile()
      return rules
    },
  }
}

/**
 * Selects the chains to trace. Only jumps to our chains and to `firewall`, which kubelet writes as well, are
 * followed; other rules of shared chains belong to other programs.
 */
export function traceable(chains: readonly ReadChain[], firewall?: string): Traceable {
  const ours = chains.filter(({ ours, name }) => ours || name === firewall)
  const isOurs = new Set(ours.map(({ family, table, name }) => `${family} ${table} ${name}`))
  const shared = chains
    .filter(({ ours, policy }) => !ours && policy !== undefined)
    .map(chain => ({
      ...chain,
      rules: chain.rules.filter(({ rule }) =>
        isOurs.has(`${chain.family} ${chain.table} ${targetChain(rule) ?? ''}`),
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
