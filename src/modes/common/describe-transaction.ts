import {
  type ElementOperation,
  isOnElements,
  type Operation,
  type Transaction,
} from '../../kernel/nft/operation.ts'
import { formatElementData, formatElementKey } from '../../kernel/nft/print-data.ts'
import { describeOperation } from '../../kernel/nft/print-operation.ts'
import type { Element, NftSet, Ruleset } from '../../kernel/nft/state.ts'
import type { Plan, PlanLine } from '../../reconcile/dataplane.ts'
import { serviceOfGroup } from './element-group.ts'
import { tableOf } from './family.ts'

/** Counts the changes of a transaction. An element that is deleted and added again is one change. */
export function countChanges(transaction: Transaction): number {
  let changes = 0
  for (const operation of transaction) changes += isOnElements(operation) ? operation.elements.length : 1
  for (const elements of replacements(transaction).values()) changes -= elements.size
  return changes
}

/** Elements that are deleted and added again, by set and key. */
type Replacements = ReadonlyMap<string, ReadonlyMap<string, Element>>

function replacements(transaction: Transaction): Replacements {
  const gone = byKey(transaction, 'delete-elements')
  const added = gone.size === 0 ? gone : byKey(transaction, 'add-elements')
  const replaced = new Map<string, Map<string, Element>>()
  for (const [set, elements] of gone) {
    const again = added.get(set)
    if (again === undefined) continue
    replaced.set(set, new Map([...elements].filter(([key]) => again.has(key))))
  }
  return replaced
}

function byKey(transaction: Transaction, verb: ElementOperation['verb']) {
  const sets = new Map<string, Map<string, Element>>()
  for (const operation of transaction) {
    if (operation.verb !== verb) continue
    const elements = sets.get(setName(operation)) ?? new Map<string, Element>()
    for (const element of operation.elements) elements.set(element.key, element)
    sets.set(setName(operation), elements)
  }
  return sets
}

function setName({ family, table, set }: ElementOperation): string {
  return `${family} ${table} ${set.name}`
}

/**
 * Describes a transaction: shared objects first, then one Service after the other. `after` is the result of
 * the transaction; its set declarations define how elements are printed.
 */
export function* describeTransaction(transaction: Transaction, after: Ruleset): IterableIterator<PlanLine> {
  const replaced = replacements(transaction)
  const byService = new Map<string, PlanLine[]>()
  for (const operation of transaction) {
    if (!isOnElements(operation)) {
      yield* describeShared(operation, after)
      continue
    }
    const again = replaced.get(setName(operation))
    for (const [i, element] of operation.elements.entries()) {
      const old = again?.get(element.key)
      if (operation.verb === 'delete-elements' && old !== undefined) continue
      const group = operation.groups[i] ?? ''
      const line = { ...describeElement(operation, element, old), service: serviceOfGroup(group) }
      if (line.service === undefined) yield line
      else {
        const lines = byService.get(line.service)
        if (lines === undefined) byService.set(line.service, [line])
        else lines.push(line)
      }
    }
  }
  for (const [, lines] of [...byService].sort(([a], [b]) => (a < b ? -1 : 1))) yield* lines
}

function* describeShared(operation: Operation, after: Ruleset): IterableIterator<PlanLine> {
  const sets = tableOf(after, operation.family)?.sets
  const text = describeOperation(operation, sets === undefined ? {} : { sets })
  const [verb = '', ...object] = text.split(' ')
  const change = { add: 'add', delete: 'remove', flush: 'change' } as const
  if (verb === 'add' || verb === 'delete' || verb === 'flush')
    yield { verb: change[verb], object: object.join(' '), service: undefined }
}

function describeElement(
  operation: ElementOperation,
  element: Element,
  old: Element | undefined,
): Pick<PlanLine, 'verb' | 'object'> {
  const { set, family, table } = operation
  const key = formatElementKey(set, element.key)
  const shift = old === undefined ? dataText(set, element) : ` : ${bare(set, old)} -> ${bare(set, element)}`
  return {
    verb: old !== undefined ? 'change' : operation.verb === 'add-elements' ? 'add' : 'remove',
    object: `element ${family} ${table} ${set.name} { ${key}${shift} }`,
  }
}

function dataText(set: NftSet, element: Element): string {
  return element.data === undefined ? '' : ` : ${bare(set, element)}`
}

function bare(set: NftSet, { data }: Element): string {
  return formatElementData(set, data)
}

/** A plan of one nf_tables transaction, with the state of the kernel after it. */
export interface TransactionPlan<State> extends Plan<State> {
  readonly transaction: Transaction
}

/** Makes a plan. `ruleset` is the part of `after` that the transaction changes. */
export function transactionPlan<State>({
  transaction,
  ruleset,
  ...its
}: Pick<TransactionPlan<State>, 'transaction' | 'after' | 'complete'> & {
  readonly ruleset: Ruleset
}): TransactionPlan<State> {
  return {
    ...its,
    transaction,
    empty: transaction.length === 0,
    changes: countChanges(transaction),
    rebuilds: transaction.some(({ verb }) => verb === 'delete-table'),
    describe: () => describeTransaction(transaction, ruleset),
  }
}
