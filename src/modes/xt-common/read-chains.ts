import { IpsetClient } from '../../kernel/ipset/client.ts'
import { createNftClient } from '../../kernel/nft/client.ts'
import { NF_DROP } from '../../kernel/nft/constants.ts'
import type { NameOfIpset } from '../../kernel/nft/expression-attributes.ts'
import type { NftFamily, Observed, ObservedChain } from '../../kernel/nft/state.ts'
import { printRule, printTables } from '../../kernel/xt/print.ts'
import { readRule } from '../../kernel/xt/read.ts'
import { targetChain, type XtRule } from '../../kernel/xt/rule.ts'
import { builtinChains, type XtPlace, type XtTableName } from '../../kernel/xt/scope.ts'
import { NFT_FAMILIES } from '../common/tables.ts'
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

/**
 * Matches the name of a Service and its port anywhere in a comment: `web traffic for shop/cart:http external ...`.
 */
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

  /** Passes names from shared chains to chains of Services, and on; three jumps lead to an endpoint. */
  spread(chains: readonly ReadChain[]): void {
    for (let jumps = 0; jumps < JUMPS_MAX; jumps++) {
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

const JUMPS_MAX = 4

function commented({ matches }: XtRule): string | undefined {
  const comment = matches.find(match => match.kind === 'comment')
  return comment?.kind === 'comment' ? NAMED.exec(comment.text)?.[1] : undefined
}

export const XT_TABLES: readonly XtTableName[] = ['filter', 'nat', 'mangle']

export function placesOf(families: readonly NftFamily[]): readonly XtPlace[] {
  return families.flatMap(family => XT_TABLES.map(table => ({ family, table })))
}

/**
 * Reads the tables of iptables-nft, including chains of other programs. Chains with `names` count as ours. Throws
 * NetlinkError.
 */
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
