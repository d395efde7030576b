import type { Clock } from '../../base/clock.ts'
import { append } from '../../base/collections.ts'
import {
  type CommitResult,
  createNftClient,
  type NftClient,
  type TableName,
} from '../../kernel/nft/client.ts'
import { GenerationWatch } from '../../kernel/nft/dump.ts'
import type { OperationFailure } from '../../kernel/nft/failures.ts'
import { type ForeignCommitsOptions, type Touched, watchForeignCommits } from '../../kernel/nft/monitor.ts'
import { describeOperation } from '../../kernel/nft/print.ts'
import { formatElementData, formatElementKey } from '../../kernel/nft/print-data.ts'
import type { Element, NftSet, Ruleset, Table } from '../../kernel/nft/state.ts'
import {
  type ElementOperation,
  isOnElements,
  type Operation,
  type Transaction,
} from '../../kernel/nft/transaction.ts'
import type { Transport } from '../../netlink/transport.ts'
import {
  type CommitOptions,
  counterOf,
  type Dataplane,
  type Generation,
  generationOf,
  guardOf,
  type KernelRefusal,
  type Plan,
  type PlanLine,
  type Receipt,
  type WriterCommit,
} from '../../reconcile/dataplane.ts'
import { NFT_FAMILIES, serviceOfGroup, tableOf } from './tables.ts'

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
export function* describeTransaction(transaction: Transaction, after: Ruleset): IterableIterator<PlanLine> {
  yield* sharedFirst(linesOf(transaction, after), ({ service }) => service)
}

/** Gives what concerns shared objects first, then what concerns one Service after the other. */
export function* sharedFirst<T>(
  items: Iterable<T>,
  serviceOf: (item: T) => string | undefined,
): IterableIterator<T> {
  const byService = new Map<string, T[]>()
  for (const item of items) {
    const service = serviceOf(item)
    if (service === undefined) yield item
    else append(byService, service, item)
  }
  for (const [, its] of [...byService].sort(([a], [b]) => (a < b ? -1 : 1))) yield* its
}

function* linesOf(transaction: Transaction, after: Ruleset): IterableIterator<PlanLine> {
  const replaced = replacements(transaction)
  for (const operation of transaction) {
    if (!isOnElements(operation)) {
      yield* describeShared(operation, after)
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

/** The kernel's errors for lack of room. The element at which it stopped is not the cause. */
const NO_ROOM: ReadonlySet<string> = new Set(['ENFILE', 'ENOMEM', 'ENOSPC', 'ENOBUFS'])

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

export interface WatchedSocket {
  readonly openTransport: () => ForeignCommitsOptions['transport']
  /** The port id of the socket that our own commits come from. */
  readonly own: number
}

export interface ClientContext {
  readonly sockets: { readonly netfilter: () => Transport }
  readonly clock: Clock
}

/** Makes a client of nf_tables for the duration of `use`. */
export async function withNftClient<T>(
  { sockets, clock }: ClientContext,
  use: (client: NftClient) => Promise<T>,
): Promise<T> {
  const client = createNftClient({ transport: sockets.netfilter(), clock })
  try {
    return await use(client)
  } finally {
    await client.close()
  }
}

/** Reads the tables `ip` and `ip6` of this name. */
export async function tablesNamed(client: NftClient, name: string): Promise<readonly Table[]> {
  return (await client.list(bothNamed(name))).ruleset.tables
}

/** The watches of a plane that counts generations as `offset` more than nf_tables does. */
export interface Watches extends Pick<Dataplane<unknown>, 'watchWriters'> {
  readonly watchGeneration: NonNullable<Dataplane<unknown>['watchGeneration']>
  /** Gives the plane's generation for one of nf_tables. */
  readonly shifted: (generation: number) => Generation
  readonly unshifted: (generation: Generation) => number
}

/**
 * Makes the watches, each over a socket of its own, which is closed with the watch. Without `socket`, the reconciler polls
 * the generation, and the log of drift names no process. `touchesUs` tells whether a changed object is ours or leads to
 * ours.
 */
export function watchesOf(
  socket: WatchedSocket | undefined,
  touchesUs: (touched: Touched) => boolean,
  offset: () => number = () => 0,
): Watches {
  const shifted = (generation: number) => generationOf((generation + offset()) >>> 0)
  const unshifted = (generation: Generation) => (counterOf(generation) - offset()) >>> 0
  return {
    shifted,
    unshifted,
    watchGeneration(everyMs, changed) {
      const watch = socket && GenerationWatch.open(socket.openTransport(), everyMs, changed)
      return watch && { expect: generation => watch.expect(unshifted(generation)), stop: () => watch.stop() }
    },
    watchWriters(report) {
      if (socket === undefined) return () => undefined
      return foreignCommits(socket, touchesUs, ({ generation, ...commit }) =>
        report({ ...commit, generation: shifted(generation) }),
      )
    },
  }
}

function foreignCommits(
  { openTransport, own }: WatchedSocket,
  concerns: (touched: Touched) => boolean,
  report: (commit: Omit<WriterCommit, 'generation'> & { readonly generation: number }) => void,
): () => void {
  const transport = openTransport()
  const commits = watchForeignCommits({
    transport,
    ownPortIds: new Set([own]),
    concerns,
    onCommit: ({ generation, processId = 0, processName = 'an unnamed process', concerned, complete }) => {
      // An incomplete notification proves nothing. The generation poll finds the commit.
      if (concerned || complete)
        report({ generation, processId, processName, own: false, touchesUs: concerned })
    },
    // The generation poll still finds the commit. Without its notification the writer stays unnamed.
    onOverrun: () => undefined,
  })
  return () => {
    commits.stop()
    // The socket only receives, so nothing is in flight.
    void transport.close()
  }
}

/** Makes the `touchesUs` of a mode whose objects are its own tables `ip` and `ip6` of this name. */
export function inTables(name: string): (touched: Touched) => boolean {
  return ({ family, table }) => table === name && (family === 'ip' || family === 'ip6')
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

/** Deletes those of the tables that are ours. Gives their names with their families. Throws as commitAsRead does. */
export async function deleteTables(
  client: NftClient,
  tables: readonly TableName[],
  isOurs: (table: Table) => boolean = () => true,
  what = 'delete tables',
): Promise<readonly string[]> {
  const read = async (): Promise<AsRead<readonly string[]>> => {
    const ours = (await client.list(tables)).ruleset.tables.filter(isOurs)
    return { value: ours.map(nameOfTable), transaction: ours.map(deleteTable) }
  }
  return await commitAsRead(client, read, what)
}

/**
 * Implements `retire` for a mode whose objects are its own tables of this name: deletes them at once. The flows that they
 * translated continue as long as another mode has nat chains, and relayed ones as long as the process that relays them.
 */
export async function retireTables(
  context: ClientContext,
  signal: AbortSignal,
  { name, isOurs }: { readonly name: string; readonly isOurs: (table: Table) => boolean },
): Promise<'removed' | 'nothing'> {
  return await withNftClient(context, async client => {
    if (!(await tablesNamed(client, name)).some(isOurs)) return 'nothing'
    if (!signal.aborted) await deleteTables(client, bothNamed(name), isOurs)
    return 'removed'
  })
}

/** The names of the tables `ip` and `ip6` of a mode. */
export function bothNamed(name: string): readonly TableName[] {
  return NFT_FAMILIES.map(family => ({ family, name }))
}

export function deleteTable({ family, name }: Pick<Table, 'family' | 'name'>): Operation {
  return { verb: 'delete-table', family, table: name }
}

export function nameOfTable({ family, name }: Table): string {
  return `${family} ${name}`
}
