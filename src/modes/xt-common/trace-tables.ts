import { allWays, type Tracer } from '../../kernel/nft/trace.ts'
import { printRule } from '../../kernel/xt/print.ts'
import { targetChain, type XtMatch, type XtRule } from '../../kernel/xt/rule.ts'
import type { XtChain, XtJump } from '../../kernel/xt/scope.ts'
import type { ReadChain } from './read-chains.ts'
import { indexRules, type RuleIndex, traceTables, type XtTables } from './trace-walk.ts'

/** The chains and jumps that packets are traced through. */
export interface Traceable {
  /** Chains with their entries among the rules. */
  readonly chains: Iterable<XtChain>
  /** Jumps in the order in which they are inserted. */
  readonly jumps: Iterable<XtJump>
  readonly print: XtTables['print']
}

const WAYS_MAX = 100_000

/** Makes a tracer. `made` is called once, for the first packet. */
export function createXtTracer(made: () => Traceable): Tracer {
  let tables: XtTables | undefined
  const trace: Tracer['trace'] = (packet, surroundings) => {
    tables ??= tablesOf(made())
    return traceTables(tables, packet, surroundings)
  }
  return {
    trace,
    ways: (packet, surroundings, limit = WAYS_MAX) =>
      allWays(random => trace(packet, { ...surroundings, random }), limit),
  }
}

export function tablesOf({ chains: all, jumps, print }: Traceable): XtTables {
  const chains = new Map<string, readonly XtRule[]>()
  const recent = new Set<string>()
  for (const { family, table, name, rules, last } of all) {
    const inOrder = last.length === 0 ? rules : [...rules, ...last]
    chains.set(`${family} ${table} ${name}`, inOrder)
    for (const { matches } of inOrder)
      for (const match of matches) if (isRecent(match)) recent.add(match.name)
  }
  for (const { family, table, chain, rule } of jumps) {
    const key = `${family} ${table} ${chain}`
    chains.set(key, [rule, ...(chains.get(key) ?? [])])
    if (rule.target?.kind !== 'jump') continue
    // KUBE-FIREWALL may have no rules of ours.
    const to = `${family} ${table} ${rule.target.chain}`
    if (!chains.has(to)) chains.set(to, [])
  }
  const indexes = new Map<string, RuleIndex>()
  for (const [key, rules] of chains) {
    const index = indexRules(rules)
    if (index !== undefined) indexes.set(key, index)
  }
  return { chains, indexes, recent, print }
}

function isRecent(match: XtMatch): match is Extract<XtMatch, { kind: 'recent' }> {
  return match.kind === 'recent'
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
