import { Pauses, type Steps } from '../../base/steps.ts'
import { chainKey, type ScopeOperations, tableKey } from '../../kernel/xt/scope-operation.ts'
import { fixedChains } from './fixed-chains.ts'
import { jumpsOf } from './jumps.ts'
import { rulesIn, servicesBetween } from './render.ts'
import type { RenderedState } from './state.ts'

/**
 * Number of rules by `ip nat`. As in kube-proxy's count, jumps in built-in chains are not included, and the
 * rule of KUBE-FIREWALL is.
 */
export type RuleCounts = ReadonlyMap<string, number>

/**
 * Counts our rules in the tables. States do not contain rules, so they are made again to be counted: for
 * Services that changed since the last count, or for all of them after a change that concerns all.
 */
export class RuleCounter {
  #state: RenderedState | undefined
  #counts = new Map<string, number>()
  /** The number of Services that need a shared chain, which exists once. */
  #users = new Map<string, number>()

  count(state: RenderedState): Steps<RuleCounts> {
    return this.#count(state)
  }

  *#count(state: RenderedState): Steps<RuleCounts> {
    const before = this.#state
    const continues = before?.statics.serviceKey === state.statics.serviceKey
    const from = continues ? before : undefined
    if (from === undefined) {
      this.#counts = new Map()
      this.#users = new Map()
    }
    this.#state = undefined
    const pauses = new Pauses()
    for (const key of from === undefined ? state.frontends.services.keys() : servicesBetween(from, state)) {
      if (from !== undefined) this.#add(rulesIn(from, key), -1)
      this.#add(rulesIn(state, key), 1)
      if (pauses.due()) yield
    }
    this.#state = state
    const counts = new Map(this.#counts)
    for (const chain of fixedChains(state.statics))
      grow(counts, tableKey(chain), chain.rules.length + chain.last.length)
    const { firewall } = state.statics.options.names
    for (const jump of jumpsOf(state.statics)) if (jump.chain === firewall) grow(counts, tableKey(jump), 1)
    return counts
  }

  #add({ chains, entries }: ReturnType<typeof rulesIn>, by: 1 | -1): void {
    for (const entry of entries) grow(this.#counts, tableKey(entry), by)
    const seen = new Set<string>()
    for (const chain of chains) {
      const rules = chain.rules.length + chain.last.length
      const key = chainKey(chain, chain.name)
      if (chain.shared !== true) grow(this.#counts, tableKey(chain), by * rules)
      else if (!seen.has(key)) {
        seen.add(key)
        if (this.#comesOrGoes(key, by)) grow(this.#counts, tableKey(chain), by * rules)
      }
    }
  }

  #comesOrGoes(key: string, by: 1 | -1): boolean {
    const before = this.#users.get(key) ?? 0
    const users = before + by
    if (users === 0) this.#users.delete(key)
    else this.#users.set(key, users)
    return users === 0 || before === 0
  }
}

function grow(counts: Map<string, number>, key: string, by: number): void {
  counts.set(key, (counts.get(key) ?? 0) + by)
}

/** Counts the rules that a batch writes into each table. */
export function rulesWritten(operations: ScopeOperations): RuleCounts {
  const counts = new Map<string, number>()
  for (const operation of operations)
    if (operation.verb === 'add-rule' || operation.verb === 'insert-rule')
      grow(counts, tableKey(operation), 1)
  return counts
}
