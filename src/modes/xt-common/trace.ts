import { PersistentMap } from '../../base/collections.ts'
import { RECENT_PREFIX } from '../../kernel/evaluate/single.ts'
import { createTracer, type Trace, type Traced, type Tracer } from '../../kernel/evaluate/trace.ts'
import { readCompiled } from '../../kernel/nft/decode.ts'
import type { Chain, NftFamily, Rule, Table } from '../../kernel/nft/state.ts'
import { compileRule } from '../../kernel/xt/compile.ts'
import { printRule } from '../../kernel/xt/print.ts'
import { targetChain, type XtRule } from '../../kernel/xt/rule.ts'
import { builtinHook, type XtChain, type XtJump, type XtTableName } from '../../kernel/xt/scope.ts'
import type { ReadChain } from './read-chains.ts'

/** The chains and jumps that packets are traced through. */
export interface Traceable {
  /** Chains with their entries among the rules. */
  readonly chains: Iterable<XtChain>
  /** Jumps in the order in which they are inserted. */
  readonly jumps: Iterable<XtJump>
  /** Prints a rule as iptables-save does after `-A CHAIN `. */
  readonly print: (rule: XtRule, family: NftFamily) => string
}

/** Makes a tracer. `made` is called once, for the first packet. */
export function createXtTracer(made: () => Traceable): Tracer {
  let known: Tracer | undefined
  const tracer = () => {
    known ??= tracerOf(made())
    return known
  }
  return {
    trace: (...args) => tracer().trace(...args),
    ways: (...args) => tracer().ways(...args),
  }
}

function tracerOf(made: Traceable): Tracer {
  const traced = tracedChains(made)
  const { trace, ways } = createTracer(traced)
  return {
    trace: (...args) => withoutOldLists(trace(...args), traced),
    ways: (...args) => ways(...args).map(way => ({ ...way, trace: withoutOldLists(way.trace, traced) })),
  }
}

/** A list of `-m recent` exists as long as a rule names it. */
function withoutOldLists(trace: Trace, { lists }: TracedChains): Trace {
  const kept = [...trace.dynamic].filter(
    ([key]) => !key.startsWith(RECENT_PREFIX) || lists.has(key.slice(RECENT_PREFIX.length)),
  )
  return kept.length === trace.dynamic.size ? trace : { ...trace, dynamic: new Map(kept) }
}

/** Chains of iptables as nf_tables holds them. */
interface TracedChains extends Pick<Traced, 'tables'> {
  readonly print: NonNullable<Traced['print']>
  /** The lists of `-m recent` that the rules name. */
  readonly lists: ReadonlySet<string>
}

interface HeldTable {
  readonly family: NftFamily
  readonly name: XtTableName
  readonly chains: Map<string, readonly XtRule[]>
}

export function tracedChains({ chains: all, jumps, print }: Traceable): TracedChains {
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
