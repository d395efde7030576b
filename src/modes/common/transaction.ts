import type { CommitResult, NftClient, TableName } from '../../kernel/nft/client.ts'
import type { OperationFailure } from '../../kernel/nft/failures.ts'
import { describeOperation } from '../../kernel/nft/print.ts'
import { formatElementData, formatElementKey } from '../../kernel/nft/print-data.ts'
import type { Element, NftSet, Ruleset, Table } from '../../kernel/nft/state.ts'
import {
  type ElementOperation,
  isOnElements,
  type Operation,
  type Transaction,
} from '../../kernel/nft/transaction.ts'
import {
  generationOf,
  type KernelRefusal,
  type Plan,
  type PlanLine,
  type Receipt,
} from '../../reconcile/dataplane.ts'
import { serviceOfGroup, tableOf } from './tables.ts'

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
  for (const operation of transaction) {
    changes += isOnElements(operation) ? operation.elements.length : 1
    if (operation.verb === 'delete-elements') changes -= countAddedAgain(transaction, operation)
  }
  return changes
}

function countAddedAgain(transaction: Transaction, gone: ElementOperation): number {
  let keys: Set<string> | undefined
  let count = 0
  for (const operation of transaction) {
    if (operation.verb !== 'add-elements' || !isSameSet(operation, gone)) continue
    keys ??= new Set(gone.elements.map(({ key }) => key))
    for (const { key } of operation.elements) if (keys.delete(key)) count++
  }
  return count
}

function isSameSet(a: ElementOperation, b: ElementOperation): boolean {
  return a.set.name === b.set.name && a.family === b.family && a.table === b.table
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

/**
 * The maximum number of tries. A commit names the generation from before its read; when another program
 * committed in between, the next try reads again.
 */
const TRIES = 16

export interface AsRead<T> {
  readonly value: T
  readonly transaction: Transaction
}

/**
 * Commits the changes that `read` computes from what it reads from the kernel, in one transaction. Reads
 * again when another program committed in between. Gives the value of the read that the commit was based on.
 * Throws an error that begins with `what` when the kernel rejects the transaction, or when each try meets another commit.
 */
export async function commitAsRead<T>(
  client: NftClient,
  read: () => Promise<AsRead<T>>,
  what = 'clean up',
): Promise<T> {
  for (let tries = 1; tries <= TRIES; tries++) {
    const generation = client.generation()
    const { value, transaction } = await read()
    if (transaction.length === 0) return value
    const result = await client.commit(transaction, { generation })
    if (result.outcome === 'committed') return value
    if (result.outcome !== 'stale') throw refusal(what, result)
  }
  throw new Error(`${what}: the kernel's generation moved on before each of ${TRIES} commits`)
}

function refusal(what: string, { outcome, failures }: CommitResult): Error {
  const [first] = failures
  return new Error(`${what}: ${first?.error.message ?? outcome}`, { cause: first?.error })
}

/** Deletes those of the tables that are ours. Throws as commitAsRead does. */
export async function deleteTables(
  client: NftClient,
  tables: readonly TableName[],
  isOurs: (table: Table) => boolean = () => true,
): Promise<void> {
  const read = async (): Promise<AsRead<void>> => {
    const { ruleset } = await client.list(tables)
    return { value: undefined, transaction: ruleset.tables.filter(isOurs).map(deleteTable) }
  }
  await commitAsRead(client, read, 'delete tables')
}

export function deleteTable({ family, name }: Pick<Table, 'family' | 'name'>): Operation {
  return { verb: 'delete-table', family, table: name }
}

export function nameOfTable({ family, name }: Table): string {
  return `${family} ${name}`
}

/** The kernel's errors for lack of room. The element at which it stopped is not the cause. */
const NO_ROOM: ReadonlySet<string> = new Set(['ENFILE', 'ENOMEM', 'ENOSPC', 'ENOBUFS'])

/** Makes the receipt of a commit whose operations are those of one transaction. */
export function receiptOf(result: CommitResult): Receipt {
  const { outcome, foreign, bytes, messages, durationMs } = result
  const generation = generationOf(result.generation)
  const refusals = result.failures.map(refusalOf)
  return { outcome, generation, foreign, refusals, bytes, messages, durationMs }
}

/** Makes a refusal from one rejected message of an nf_tables batch. */
export function refusalOf({ elements, ...words }: OperationFailure): KernelRefusal {
  return refusalTo(
    elements.flatMap(({ group }) => serviceOfGroup(group) ?? []),
    words,
  )
}

/** Makes a refusal for objects that serve these Services. The error names them. */
export function refusalTo(
  suspects: readonly string[],
  { code, error }: Pick<OperationFailure, 'code' | 'error'>,
): KernelRefusal {
  if (NO_ROOM.has(code)) return { services: [], error }
  const services = new Set(suspects)
  return { services: [...services], error: services.size === 0 ? error : named(error, services) }
}

const SERVICES_NAMED_MAX = 3

function named(error: Error, services: ReadonlySet<string>): Error {
  const first = [...services].slice(0, SERVICES_NAMED_MAX).join(', ')
  const more = services.size > SERVICES_NAMED_MAX ? ` and ${services.size - SERVICES_NAMED_MAX} more` : ''
  const noun = services.size === 1 ? 'Service' : 'Services'
  return new Error(`${noun} ${first}${more}: ${error.message}`, { cause: error })
}
