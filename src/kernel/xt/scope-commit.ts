import { finish, finishInSlices, type Slicing, type Steps } from '../../base/steps.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import type { CommitResult, NftClient, OperationFailure } from '../nft/client.ts'
import type { Operation } from '../nft/operation.ts'
import type { HandleBook } from './scope-handles.ts'
import type { Language } from './scope-observed.ts'
import { chainKey, type DeleteRule, type ScopeOperation, type ScopeOperations } from './scope-operation.ts'
import { type Resolved, resolveDeletions } from './scope-resolve.ts'

export interface ScopeCommitOptions {
  readonly client: Pick<NftClient, 'commit' | 'rule' | 'ruleCounters'>
  readonly book: HandleBook
  readonly language: Language
  /** How long work shares the event loop. */
  readonly slicing: Slicing
  /** Gives `stale` when the kernel moved on from here. Without it, what moved on is verified, and tried again. */
  readonly generation: number | undefined
}

export interface ScopeCommit
  extends Pick<CommitResult, 'outcome' | 'generation' | 'foreign' | 'bytes' | 'messages'> {
  readonly failures: readonly ScopeFailure[]
}

export interface ScopeFailure extends Pick<OperationFailure, 'code' | 'error'> {
  /** Undefined when the kernel refused the whole. */
  readonly operation: ScopeOperation | undefined
}

/** A batch that names a generation is sent so often while others commit in between. */
const TRIES = 6
/** Of how many new rules of a chain the kernel is asked for the numbers: it is listed in less time than more of them take. */
const ECHOED_MAX = 200
const SLICED_FROM = 500
const OPERATIONS_PER_STEP = 64

/**
 * Sends operations as one batch that names the generation at which the rules that go were verified. Chains that the
 * kernel does not let go, since rules of others lead to them, are emptied and stay. Throws only for bugs of ours.
 */
export async function commitScope(
  operations: ScopeOperations,
  options: ScopeCommitOptions,
): Promise<ScopeCommit> {
  const { client, book, generation: asked } = options
  const start = await client.commit([])
  book.reached(start.generation)
  let { generation, foreign } = start
  const kept = new Set<ScopeOperation>()
  for (let tries = 1; ; tries++) {
    const ended = { generation, foreign, failures: [], bytes: 0, messages: 0 }
    if (asked !== undefined && asked !== generation) return { ...ended, outcome: 'stale' }
    const resolved = await resolveDeletions(options, operations)
    if (resolved === undefined) return { ...ended, outcome: 'stale' }
    const batch = await translated(options, { operations, resolved, kept })
    if (batch.unwritable.length > 0) return { ...ended, outcome: 'refused', failures: batch.unwritable }
    const isLast = tries === TRIES
    // Where nothing goes by its number nothing was verified.
    const guard = isLast && asked === undefined && resolved.size === 0 ? {} : { generation }
    const result = await client.commit(batch.transaction, guard)
    generation = result.generation
    foreign ||= result.foreign
    if (result.outcome === 'committed') settle(book, batch, result)
    else book.reached(generation)
    if (result.outcome === 'unknown') book.forgetAll()
    const busy = result.outcome === 'refused' ? busyChains(result, batch) : []
    for (const operation of busy) kept.add(operation)
    const again = busy.length > 0 || (result.outcome === 'stale' && asked === undefined)
    if (again && !isLast) continue
    return { ...result, foreign, failures: failuresOf(result, batch) }
  }
}

interface Batch {
  readonly transaction: Operation[]
  /** What each operation was made of. */
  readonly origins: ScopeOperation[]
  /** What cannot be said to the kernel, as it would refuse it. */
  readonly unwritable: ScopeFailure[]
  readonly resolved: ReadonlyMap<DeleteRule, Resolved>
}

interface Given {
  readonly operations: ScopeOperations
  readonly resolved: ReadonlyMap<DeleteRule, Resolved>
  readonly kept: ReadonlySet<ScopeOperation>
}

function translated({ book, language, slicing }: ScopeCommitOptions, given: Given): Promise<Batch> | Batch {
  const steps = translate(given, { book, language })
  return given.operations.length < SLICED_FROM ? finish(steps) : finishInSlices(steps, slicing)
}

interface Translating {
  readonly book: HandleBook
  readonly language: Language
}

function* translate({ operations, resolved, kept }: Given, { book, language }: Translating): Steps<Batch> {
  const batch: Batch = { transaction: [], origins: [], unwritable: [], resolved }
  const echoed = echoedChains(operations, book)
  let count = 0
  for (const operation of operations) {
    if (++count % OPERATIONS_PER_STEP === 0) yield
    if (kept.has(operation)) continue
    try {
      batch.transaction.push(translateOne(operation, { echoed, resolved, language }))
      batch.origins.push(operation)
    } catch (error) {
      if (!(error instanceof NetlinkError)) throw error
      batch.unwritable.push({ operation, code: error.code, error })
    }
  }
  return batch
}

interface TranslatingOne {
  readonly echoed: ReadonlySet<string>
  readonly resolved: ReadonlyMap<DeleteRule, Resolved>
  readonly language: Language
}

function translateOne(operation: ScopeOperation, context: TranslatingOne): Operation {
  const { family, table } = operation
  switch (operation.verb) {
    case 'add-table':
      return { verb: 'add-table', family, table, flags: 0, comment: undefined }
    case 'add-chain': {
      const { chain: name, hook } = operation
      return { verb: 'add-chain', family, table, chain: { name, hook, rules: [] } }
    }
    case 'flush-chain':
    case 'delete-chain':
      return { verb: operation.verb, family, table, chain: operation.chain }
    case 'add-rule':
    case 'insert-rule': {
      const rule = context.language.compile(operation.rule, family)
      const { verb, chain } = operation
      const isEchoed = context.echoed.size > 0 && context.echoed.has(chainKey(operation, chain))
      return isEchoed
        ? { verb, family, table, chain, rule, echo: true }
        : { verb, family, table, chain, rule }
    }
    case 'delete-rule': {
      const handle = context.resolved.get(operation)?.handle
      if (handle === undefined) throw new Error(`${operation.chain}: a rule without a number`)
      return { verb: 'delete-rule', family, table, chain: operation.chain, handle }
    }
  }
}

/** Chains that the book knows and can go on knowing. */
function echoedChains(operations: ScopeOperations, book: HandleBook): ReadonlySet<string> {
  const rules = new Map<string, number>()
  if (book.isEmpty) return new Set()
  for (const operation of operations) {
    const { verb } = operation
    if (verb !== 'insert-rule' && verb !== 'add-rule') continue
    const key = chainKey(operation, operation.chain)
    if (book.has(key)) rules.set(key, (rules.get(key) ?? 0) + 1)
  }
  if (rules.size > 0)
    for (const operation of operations)
      if (operation.verb === 'flush-chain') rules.delete(chainKey(operation, operation.chain))
  return new Set([...rules].flatMap(([key, count]) => (count > ECHOED_MAX ? [] : [key])))
}

/** Keeps the book. */
function settle(book: HandleBook, { transaction, origins, resolved }: Batch, result: CommitResult): void {
  if (result.foreign) book.reached(result.generation)
  else book.committed(result.generation)
  if (book.isEmpty) return
  for (const [i, operation] of transaction.entries()) {
    const origin = origins[i]
    if (origin === undefined || origin.verb === 'add-table') continue
    const key = chainKey(origin, origin.chain)
    if (!book.has(key)) continue
    const rule = origin.verb === 'delete-rule' ? resolved.get(origin) : undefined
    if (rule !== undefined) book.remove(key, rule)
    else if (operation.verb === 'add-rule' || operation.verb === 'insert-rule') {
      const handle = result.handles.get(operation)
      if (handle === undefined || !('compiled' in operation.rule)) book.forget(key)
      else book.add(key, { handle, compiled: operation.rule.compiled })
    } else book.forget(key)
  }
}

/** Chains that cannot go, when nothing else was refused. */
function busyChains({ failures }: CommitResult, { transaction, origins }: Batch): readonly ScopeOperation[] {
  const isBusy = ({ operation, code }: OperationFailure): boolean =>
    operation.verb === 'delete-chain' && code === 'EBUSY'
  if (!failures.every(isBusy)) return []
  return failures.flatMap(({ operation }) => origins[transaction.indexOf(operation)] ?? [])
}

/** What the kernel says of the batch as a whole is nobody's doing. */
function failuresOf({ failures }: CommitResult, { transaction, origins }: Batch): readonly ScopeFailure[] {
  return failures.map(({ operation, code, error }) => {
    const isOfWhole = error instanceof NetlinkError && error.operation === 'commit'
    return { operation: isOfWhole ? undefined : origins[transaction.indexOf(operation)], code, error }
  })
}
