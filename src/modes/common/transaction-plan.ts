import { append } from '../../base/collections.ts'
import { isMissingFamily } from '../../kernel/missing-family.ts'
import type { CommitResult, NftClient } from '../../kernel/nft/client.ts'
import type { OperationFailure } from '../../kernel/nft/failures.ts'
import { describeOperation } from '../../kernel/nft/print.ts'
import { formatElementData, formatElementKey } from '../../kernel/nft/print-data.ts'
import type { Element, NftFamily, NftSet, Ruleset } from '../../kernel/nft/state.ts'
import {
  type ElementOperation,
  isOnElements,
  type Operation,
  type Transaction,
} from '../../kernel/nft/transaction.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import {
  type CommitOptions,
  generationOf,
  guardOf,
  type KernelRefusal,
  type Plan,
  type PlanLine,
  type Receipt,
} from '../../reconcile/dataplane.ts'
import { LAYOUTS, serviceOfGroup, tableOf } from './tables.ts'

/** A plan of one nf_tables transaction, with the state of the kernel after it. */
export interface TransactionPlan<State> extends Plan<State> {
  readonly transaction: Transaction
}

/** Makes a plan. `ruleset` is the part of `after` that the transaction changes. */
export function transactionPlan<State>({
  transaction,
  after,
  complete,
  ruleset,
}: Pick<TransactionPlan<State>, 'transaction' | 'after' | 'complete'> & {
  readonly ruleset: Ruleset
}): TransactionPlan<State> {
  return {
    transaction,
    after,
    complete,
    empty: transaction.length === 0,
    changes: countChanges(transaction),
    rebuilds: transaction.some(({ verb }) => verb === 'delete-table'),
    describe: () => describeTransaction(transaction, ruleset),
  }
}

/** Counts the changes of a transaction. An element that is deleted and added again is one change. */
export function countChanges(transaction: Transaction): number {
  let changes = 0
  for (const operation of transaction) changes += isOnElements(operation) ? operation.elements.length : 1
  for (const again of replacements(transaction).values()) changes -= again.size
  return changes
}

/** Elements that are deleted and added again, by set and key. */
type Replacements = ReadonlyMap<string, ReadonlyMap<string, Element>>

function replacements(transaction: Transaction): Replacements {
  const gone = byKey(transaction, 'delete-elements', () => true)
  const added = gone.size === 0 ? gone : byKey(transaction, 'add-elements', set => gone.has(set))
  const replaced = new Map<string, Map<string, Element>>()
  for (const [set, elements] of gone) {
    const again = added.get(set)
    if (again === undefined) continue
    replaced.set(set, new Map([...elements].filter(([key]) => again.has(key))))
  }
  return replaced
}

function byKey(
  transaction: Transaction,
  verb: ElementOperation['verb'],
  isAsked: (set: string) => boolean,
): ReadonlyMap<string, ReadonlyMap<string, Element>> {
  const sets = new Map<string, Map<string, Element>>()
  for (const operation of transaction) {
    if (operation.verb !== verb || !isAsked(setName(operation))) continue
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
export function describeTransaction(transaction: Transaction, after: Ruleset): readonly PlanLine[] {
  return sharedFirst(linesOf(transaction, after), ({ service }) => service)
}

/** Gives what concerns shared objects first, then what concerns one Service after the other. */
export function sharedFirst<T>(items: Iterable<T>, serviceOf: (item: T) => string | undefined): readonly T[] {
  const shared: T[] = []
  const byService = new Map<string, T[]>()
  for (const item of items) {
    const service = serviceOf(item)
    if (service === undefined) shared.push(item)
    else append(byService, service, item)
  }
  const sorted = [...byService].sort(([a], [b]) => (a < b ? -1 : 1))
  return [...shared, ...sorted.flatMap(([, its]) => its)]
}

function* linesOf(transaction: Transaction, after: Ruleset): IterableIterator<PlanLine> {
  const replaced = replacements(transaction)
  for (const operation of transaction) {
    if (!isOnElements(operation)) {
      const line = describeShared(operation, after)
      if (line !== undefined) yield line
      continue
    }
    const again = replaced.get(setName(operation))
    for (const [i, element] of operation.elements.entries()) {
      const old = again?.get(element.key)
      if (operation.verb === 'delete-elements' && old !== undefined) continue
      const service = serviceOfGroup(operation.groups[i] ?? '')
      yield { ...describeElement(operation, element, old), service }
    }
  }
}

function describeShared(operation: Operation, after: Ruleset): PlanLine | undefined {
  const sets = tableOf(after, operation.family)?.sets
  const text = describeOperation(operation, sets === undefined ? {} : { sets })
  const [verb = '', ...object] = text.split(' ')
  const change = { add: 'add', delete: 'remove', flush: 'change' } as const
  return verb === 'add' || verb === 'delete' || verb === 'flush'
    ? { verb: change[verb], object: object.join(' '), service: undefined }
    : undefined
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

/** Makes the receipt of a commit whose operations are those of one transaction. */
export function receiptOf(result: CommitResult): Receipt {
  const { outcome, foreign, bytes, messages, durationMs } = result
  const generation = generationOf(result.generation)
  const refusals = result.failures.map(refusalOf)
  return { outcome, generation, foreign, refusals, bytes, messages, durationMs }
}

/** Commits plans through the client, each in one transaction. */
export function commitWith(
  client: NftClient,
): (plan: { readonly transaction: Transaction }, options: CommitOptions) => Promise<Receipt> {
  return async ({ transaction }, options) => {
    const guard = options.generation === undefined ? undefined : guardOf(options)
    return receiptOf(await client.commit(transaction, guard))
  }
}

/** The kernel's errors for lack of room. The element at which it stopped is not the cause. */
const NO_ROOM: ReadonlySet<string> = new Set(['ENFILE', 'ENOMEM', 'ENOSPC', 'ENOBUFS'])

/** Makes a refusal from one rejected message of an nf_tables batch. */
export function refusalOf({ elements, operation, ...words }: OperationFailure): KernelRefusal {
  const services = elements.flatMap(({ group }) => serviceOfGroup(group) ?? [])
  // The kernel rejected the batch as a whole, not this operation.
  const isOfWhole = words.error instanceof NetlinkError && words.error.operation === 'commit'
  return refusalTo(services, words, isOfWhole ? undefined : operation.family)
}

/** Makes a refusal for an object that serves these Services, or all of its family. The error names the Services. */
export function refusalTo(
  suspects: readonly string[],
  { code, error }: Pick<OperationFailure, 'code' | 'error'>,
  family?: NftFamily,
): KernelRefusal {
  if (NO_ROOM.has(code)) return { services: [], error }
  const services = new Set(suspects)
  if (services.size > 0) return { services: [...services], error: named(error, services) }
  const isLacking = family !== undefined && isMissingFamily('nftables', code)
  return { services: [], error, family: isLacking ? LAYOUTS[family].model : undefined }
}

function named(error: Error, services: ReadonlySet<string>): Error {
  const names = [...services]
  const first = names.splice(0, 3).join(', ')
  const more = names.length > 0 ? ` and ${names.length} more` : ''
  const noun = services.size === 1 ? 'Service' : 'Services'
  return new Error(`${noun} ${first}${more}: ${error.message}`, { cause: error })
}
