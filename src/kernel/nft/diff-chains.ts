import { type Rule, targetsOf } from './expression.ts'
import type { Operation, TableOperation } from './operation.ts'
import { ruleKey } from './rule-key.ts'
import type { Chain, ElementGroup, Table } from './state.ts'

/**
 * Returns the operations that turn the chains of `from` and their rules into those of `to`. It removes rules, but no
 * chains.
 */
export function diffChains(from: Table, to: Table): readonly Operation[] {
  if (from.chains === to.chains) return []
  const target: TableOperation = { family: to.family, table: to.name }
  const chains: Operation[] = []
  const rules: Operation[] = []
  for (const chain of to.chains.values()) {
    const before = from.chains.get(chain.name)
    if (before === chain) continue
    const remade = before !== undefined && !sameHook(before, chain)
    if (before !== undefined && (remade || !sameRules(before.rules, chain.rules))) {
      const flush: Operation = { ...target, verb: 'flush-chain', chain: chain.name }
      // The kernel cannot change a hook in place (EOPNOTSUPP), and deletes only empty chains.
      if (remade)
        chains.push(...emptied(before, flush), { ...target, verb: 'delete-chain', chain: chain.name })
      else rules.push(...emptied(before, flush))
    } else if (before !== undefined) continue
    if (before === undefined || remade) chains.push({ ...target, verb: 'add-chain', chain })
    for (const rule of chain.rules) rules.push({ ...target, verb: 'add-rule', chain: chain.name, rule })
  }
  return [...chains, ...rules]
}

function emptied(chain: Chain, flush: Operation): readonly Operation[] {
  return chain.rules.length === 0 ? [] : [flush]
}

function sameHook(a: Chain, b: Chain): boolean {
  if (a.hook === undefined || b.hook === undefined) return a.hook === b.hook
  return (
    a.hook.type === b.hook.type &&
    a.hook.hooknum === b.hook.hooknum &&
    a.hook.priority === b.hook.priority &&
    a.hook.policy === b.hook.policy
  )
}

function sameRules(a: readonly Rule[], b: readonly Rule[]): boolean {
  if (a === b) return true
  if (a.length !== b.length) return false
  return a.every((rule, i) => {
    const other = b[i]
    return rule === other || (other !== undefined && ruleKey(rule) === ruleKey(other))
  })
}

/** The chains that are no longer wanted. */
interface StaleChains {
  readonly flush: readonly Operation[]
  readonly remove: readonly Operation[]
  /** Chains that remain after this transaction, with their content at that time. */
  readonly left: readonly Chain[]
}

/**
 * Removes chains that only `from` has, in up to two steps. A chain that an element still uses afterwards stays
 * unchanged. A chain that any reference in `from` leads to is emptied, and the next transaction removes it: kernels
 * before 6.2 refuse (EBUSY) to delete a chain in the transaction that drops its last reference. All other chains are
 * removed at once.
 */
export function retireChains(
  from: Table,
  to: Table,
  elements: { readonly referenced: ReadonlySet<string>; readonly late: ElementGroup },
): StaleChains {
  const isSame = from.chains === to.chains
  const stale = isSame ? [] : [...from.chains.values()].filter(chain => !to.chains.has(chain.name))
  if (stale.length === 0) return { flush: [], remove: [], left: [] }
  const target: TableOperation = { family: to.family, table: to.name }
  const referenced = new Set([...elements.referenced, ...[...from.chains.values()].flatMap(targetsOfChain)])
  const used = inUse(from, to, elements.late)
  const flush: Operation[] = []
  const remove: Operation[] = []
  const left: Chain[] = []
  for (const chain of stale) {
    if (used.has(chain.name)) {
      left.push(chain)
      continue
    }
    if (chain.rules.length > 0) flush.push({ ...target, verb: 'flush-chain', chain: chain.name })
    if (referenced.has(chain.name)) left.push({ ...chain, rules: [] })
    else remove.push({ ...target, verb: 'delete-chain', chain: chain.name })
  }
  return { flush, remove, left }
}

/** Returns the stale chains that a packet may still reach through an element whose removal waits. */
function inUse(from: Table, to: Table, late: ElementGroup): ReadonlySet<string> {
  // Rules that use a set must be removed together with the set, wherever they are.
  for (const name of from.sets.keys()) if (!to.sets.has(name)) return new Set()
  const used = new Set<string>()
  const pending: string[] = []
  for (const { data } of late)
    if (typeof data === 'object' && data.chain !== undefined) pending.push(data.chain)
  for (let name = pending.pop(); name !== undefined; name = pending.pop()) {
    const chain = from.chains.get(name)
    if (used.has(name) || chain === undefined) continue
    used.add(name)
    pending.push(...targetsOfChain(chain))
  }
  return used
}

/** Returns the names of the chains that rules of a chain jump or go to. */
function targetsOfChain({ rules }: Chain): readonly string[] {
  return rules.flatMap(({ expressions }) => targetsOf(expressions))
}
