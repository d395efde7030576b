import {
  NF_INET_LOCAL_IN,
  NF_INET_POST_ROUTING,
  NF_IP_PRI_NAT_DST,
  NF_IP_PRI_NAT_SRC,
} from '../kernel/nft/constants.ts'
import { type Expression, hasEffect, isLogOnly, isNote, type Rule } from '../kernel/nft/expression.ts'
import type { AnyTable, Chain } from '../kernel/nft/state.ts'
import type { RulePlace } from './machine.ts'
import { ClassSets, type MemoryLog } from './sets.ts'

export interface CompiledRule {
  readonly expressions: readonly Expression[]
  readonly place: RulePlace
}

export interface CompiledChain {
  readonly name: string
  readonly rules: readonly CompiledRule[]
  readonly table: CompiledTable
}

export interface CompiledTable {
  readonly name: string
  readonly isOwn: boolean
  readonly sets: ClassSets
  readonly chains: Map<string, CompiledChain>
}

/** The kernel calls all nat chains where its own translation stands; among them their priorities count. */
export function orderOf({ hook }: Chain): readonly number[] {
  if (hook === undefined) return [0, 0]
  if (hook.type !== 'nat') return [hook.priority, 0]
  const isSource = hook.hooknum === NF_INET_POST_ROUTING || hook.hooknum === NF_INET_LOCAL_IN
  return [isSource ? NF_IP_PRI_NAT_SRC : NF_IP_PRI_NAT_DST, hook.priority]
}

export function compileTable(table: AnyTable, isOwn: boolean, log: MemoryLog): CompiledTable {
  const name = `${table.family} ${table.name}`
  const chains = new Map<string, CompiledChain>()
  const sets = new ClassSets({ name, sets: table.sets, elements: table.elements.values(), isOwn }, log)
  const compiled = { name, isOwn, sets, chains }
  for (const chain of table.chains.values()) chains.set(chain.name, compileChain(chain, compiled))
  return compiled
}

export function compileChain(chain: Chain, table: CompiledTable): CompiledChain {
  const { isOwn } = table
  const rules = chain.rules.flatMap((rule, index) => {
    const place = { table: table.name, chain: chain.name, rule: index + 1, isOwn }
    return (isOwn && !isLogOnly(rule)) || hasEffect(rule) ? [{ expressions: withoutNotes(rule), place }] : []
  })
  return { name: chain.name, rules, table }
}

function withoutNotes({ expressions }: Rule): readonly Expression[] {
  return expressions.filter(each => !isNote(each))
}

export function placeText({ table, chain, rule }: RulePlace): string {
  return `${table} ${chain}, rule ${rule}`
}
