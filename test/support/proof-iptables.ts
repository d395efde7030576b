import { append, PersistentMap } from '../../src/base/collections.ts'
import { readCompiled } from '../../src/kernel/nft/decode.ts'
import type { Chain, ElementGroup, Table } from '../../src/kernel/nft/state.ts'
import { compileRule } from '../../src/kernel/xt/compile.ts'
import type { XtRule } from '../../src/kernel/xt/rule.ts'
import {
  builtinChains,
  builtinHook,
  chainKey,
  type XtChain,
  type XtJump,
  type XtPlace,
} from '../../src/kernel/xt/scope.ts'
import { jumpsOf } from '../../src/modes/iptables/chains.ts'
import { wantedChains } from '../../src/modes/iptables/mode.ts'
import { iptablesProving } from '../../src/modes/iptables/settings.ts'
import type { IptablesState } from '../../src/modes/iptables/state.ts'
import type { Proving } from '../../src/modes/mode.ts'

/** What src/proof knows of iptables mode in a scenario: chains have the usual names, and node ports answer at 127.0.0.1. */
export const PROVING: Proving = iptablesProving({
  serviceProxyName: undefined,
  iptables: { localhostNodePorts: true, optimize: false },
  nodePortAddresses: { primary: false, cidrs: [] },
})

/** A chain of iptables as a kernel holds it. */
export interface HeldChain extends XtPlace {
  readonly name: string
  readonly rules: readonly XtRule[]
}

/** The chains that a kernel holds after a start of iptables mode, those of the hooks among them. */
export function heldChains(state: IptablesState): readonly HeldChain[] {
  return state.kind === 'rendered' ? chainsWith(wantedChains(state), jumpsOf(state.statics)) : []
}

/** The chains that a kernel holds that had none before. */
export function chainsWith(wanted: Iterable<XtChain>, jumps: readonly XtJump[]): readonly HeldChain[] {
  const chains = new Map<string, XtPlace & { readonly name: string; readonly rules: XtRule[] }>()
  const rulesAt = (place: XtPlace, name: string): XtRule[] => {
    const key = chainKey(place, name)
    const known = chains.get(key)
    if (known !== undefined) return known.rules
    for (const each of [...builtinChains(place.table), name]) {
      const its = chainKey(place, each)
      if (!chains.has(its))
        chains.set(its, { family: place.family, table: place.table, name: each, rules: [] })
    }
    return chains.get(key)?.rules ?? []
  }
  for (const chain of wanted) rulesAt(chain, chain.name).push(...chain.rules, ...chain.last)
  // Of several in one chain, the last one ends up first.
  for (const { chain, rule, ...place } of jumps) {
    rulesAt(place, chain).unshift(rule)
    if (rule.target?.kind === 'jump') rulesAt(place, rule.target.chain)
  }
  return [...chains.values()]
}

/** Rules know sets by number. */
const sets: string[] = []
const nameOf = (number: number) => sets[number]
function numberOf(name: string): number {
  if (!sets.includes(name)) sets.push(name)
  return sets.indexOf(name)
}

/** The same, as nf_tables lists it. */
export function tablesOfChains(held: readonly HeldChain[]): readonly Table[] {
  const tables = new Map<string, HeldChain[]>()
  for (const chain of held) append(tables, `${chain.family} ${chain.table}`, chain)
  return [...tables.values()].flatMap((its): readonly Table[] => {
    const [first] = its
    if (first === undefined) return []
    const { family, table } = first
    const chains = its.map(({ name, rules }): Chain => {
      const compiled = rules.map(rule => readCompiled(compileRule(rule, family, numberOf), nameOf))
      return { name, hook: builtinHook(table, name), rules: compiled }
    })
    return [
      {
        family,
        name: table,
        flags: 0,
        comment: undefined,
        chains: new Map(chains.map(chain => [chain.name, chain])),
        sets: new Map(),
        elements: PersistentMap.empty<ElementGroup>(),
      },
    ]
  })
}

export function tablesOfIptables(state: IptablesState): readonly Table[] {
  return tablesOfChains(heldChains(state))
}
