import type { RuleCodec } from '../../kernel/xt/compile.ts'
import { printRule } from '../../kernel/xt/print.ts'
import { readRule } from '../../kernel/xt/read.ts'
import { chainKey, type ScopeOperation, type ScopeOperations } from '../../kernel/xt/scope.ts'
import type { PlanLine } from '../../reconcile/dataplane.ts'
import { sharedFirst } from '../common/transaction-plan.ts'

/** Counts changes. A chain that is rewritten is one change. */
export function countScopeChanges(operations: ScopeOperations): number {
  const flushed = flushedChains(operations)
  return operations.reduce((sum, operation) => sum + (isChange(operation, flushed) ? 1 : 0), 0)
}

function isChange(operation: ScopeOperation, { gone, anew }: FlushedChains): boolean {
  if (anew.size === 0) return true
  if (operation.verb === 'flush-chain') return !gone.has(chainKey(operation, operation.chain))
  return operation.verb !== 'add-rule' || !anew.has(chainKey(operation, operation.chain))
}

interface FlushedChains {
  readonly gone: ReadonlySet<string>
  /** The rewritten chains, each with its new number of rules. */
  readonly anew: ReadonlyMap<string, number>
}

function flushedChains(operations: ScopeOperations): FlushedChains {
  const gone = new Set<string>()
  const anew = new Map<string, number>()
  for (const operation of operations) {
    if (operation.verb === 'flush-chain') anew.set(chainKey(operation, operation.chain), 0)
    else if (operation.verb === 'delete-chain') gone.add(chainKey(operation, operation.chain))
  }
  if (anew.size === 0) return { gone, anew }
  for (const operation of operations) {
    if (operation.verb !== 'add-rule') continue
    const key = chainKey(operation, operation.chain)
    const rules = anew.get(key)
    if (rules !== undefined) anew.set(key, rules + 1)
  }
  return { gone, anew }
}

/** Describes operations: shared objects first, then one Service after the other. */
export function describeScope(
  operations: ScopeOperations,
  nameOfIpset?: RuleCodec['nameOfIpset'],
): readonly PlanLine[] {
  const context = { ...flushedChains(operations), nameOfIpset }
  const changes = operations.filter(operation => isChange(operation, context))
  return sharedFirst(changes, ({ owner }) => owner).map(operation => describeOperation(operation, context))
}

interface Describing extends FlushedChains {
  readonly nameOfIpset: RuleCodec['nameOfIpset'] | undefined
}

function describeOperation(operation: ScopeOperation, { anew, nameOfIpset }: Describing): PlanLine {
  const { family, table, owner: service } = operation
  switch (operation.verb) {
    case 'add-table':
      return { verb: 'add', object: `table ${family} ${table}`, service }
    case 'add-chain':
    case 'delete-chain': {
      const verb = operation.verb === 'add-chain' ? 'add' : 'remove'
      return { verb, object: `chain ${chainKey(operation, operation.chain)}`, service }
    }
    case 'flush-chain': {
      const key = chainKey(operation, operation.chain)
      return {
        verb: 'change',
        object: `chain ${key} rules ${operation.rules} -> ${anew.get(key) ?? 0}`,
        service,
      }
    }
    case 'add-rule':
    case 'insert-rule': {
      const { chain, rule } = operation
      const object = `rule of ${chainKey(operation, chain)} ${printRule(rule, family)}`
      return { verb: 'add', object, service }
    }
    case 'delete-rule': {
      const { chain, rule } = operation
      const text = printRule(readRule(rule.compiled, family, nameOfIpset), family)
      return { verb: 'remove', object: `rule of ${chainKey(operation, chain)} ${text}`, service }
    }
  }
}
