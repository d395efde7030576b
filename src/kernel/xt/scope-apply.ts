import { Pauses, type Steps } from '../../base/clock.ts'
import { readCompiled } from '../nft/decode.ts'
import { type Expression, isNote, type Rule } from '../nft/expression.ts'
import type { AnyTable, Chain } from '../nft/state.ts'
import { compileRule } from './compile.ts'
import { isObservedRule, type ScopeOperation, type ScopeOperations, tableKey } from './scope.ts'

/**
 * Gives what tables hold after operations that were committed. Chains without changes stay the same objects. Undefined where
 * the tables are not those that the operations were made for.
 */
export function* appliedScope(
  tables: readonly AnyTable[],
  operations: ScopeOperations,
): Steps<readonly AnyTable[] | undefined> {
  const pauses = new Pauses()
  const drafts = new Map<string, TableDraft>()
  for (const operation of operations) {
    const key = tableKey(operation)
    const table = tables.find(({ family, name }) => family === operation.family && name === operation.table)
    if (table === undefined) return undefined
    const draft = drafts.get(key) ?? new TableDraft(table)
    drafts.set(key, draft)
    if (!draft.apply(operation)) return undefined
    if (pauses.due()) yield
  }
  return tables.map(table => drafts.get(`${table.family} ${table.name}`)?.table ?? table)
}

/** One table while operations change it. */
class TableDraft {
  readonly #before: AnyTable
  readonly #chains: Map<string, Chain>
  /** Rules of the chains that change. */
  readonly #rules = new Map<string, Rule[]>()

  constructor(before: AnyTable) {
    this.#before = before
    this.#chains = new Map(before.chains)
  }

  get table(): AnyTable {
    for (const [name, rules] of this.#rules) {
      const chain = this.#chains.get(name)
      if (chain !== undefined) this.#chains.set(name, { ...chain, rules })
    }
    return { ...this.#before, chains: this.#chains }
  }

  /** Gives whether the table has what the operation asks for. */
  apply(operation: ScopeOperation): boolean {
    if (operation.verb === 'add-table') return true
    const { verb, chain: name, family } = operation
    if (verb === 'add-chain') {
      if (!this.#chains.has(name)) this.#chains.set(name, { name, hook: operation.hook, rules: [] })
      return true
    }
    const rules = this.#rulesOf(name)
    if (rules === undefined) return false
    switch (verb) {
      case 'flush-chain':
        rules.length = 0
        return true
      case 'delete-chain':
        this.#rules.delete(name)
        return this.#chains.delete(name)
      case 'add-rule':
        rules.push(readCompiled(compileRule(operation.rule, family)))
        return true
      case 'insert-rule':
        rules.unshift(readCompiled(compileRule(operation.rule, family)))
        return true
      case 'delete-rule': {
        if (isObservedRule(operation.rule)) return false
        const its = readCompiled(compileRule(operation.rule, family))
        const at = rules.findIndex(each => isSame(each, its))
        if (at >= 0) rules.splice(at, 1)
        return at >= 0
      }
    }
  }

  #rulesOf(name: string): Rule[] | undefined {
    const chain = this.#chains.get(name)
    const rules = this.#rules.get(name) ?? (chain && [...chain.rules])
    if (rules !== undefined) this.#rules.set(name, rules)
    return rules
  }
}

/** Most rules of a chain differ early. Counters go on counting. */
function isSame({ expressions: some }: Rule, { expressions: others }: Rule): boolean {
  return (
    some.length === others.length &&
    some.every((each, at) => {
      const other = others[at]
      return (
        other !== undefined && each.kind === other.kind && (isNote(each) || isSameExpression(each, other))
      )
    })
  )
}

function isSameExpression(a: Expression, b: Expression): boolean {
  if ('data' in a && 'data' in b && a.data !== b.data) return false
  if ('info' in a && 'info' in b && a.info !== b.info) return false
  return JSON.stringify(a) === JSON.stringify(b)
}
