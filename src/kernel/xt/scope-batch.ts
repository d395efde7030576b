import { Pauses, type Slicing, type Steps } from '../../base/steps.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import type { CommitResult, NftClient, OperationFailure } from '../nft/client.ts'
import type { Operation } from '../nft/operation.ts'
import type { Language } from './language.ts'
import { printRule } from './print.ts'
import type { HandleBook } from './scope-handles.ts'
import { chainKey, type DeleteRule, type ScopeOperation, type ScopeOperations } from './scope-operation.ts'
import type { Resolved } from './scope-resolve.ts'

export interface ScopeCommitOptions {
  readonly client: Pick<NftClient, 'commit' | 'rule' | 'ruleCounters'>
  readonly book: HandleBook
  readonly language: Language
  /** How work yields to the event loop. */
  readonly slicing: Slicing
  /**
   * The commit is `stale` if the kernel has left this generation. Without it, the commit verifies the changes and
   * retries.
   */
  readonly generation: number | undefined
}

export interface ScopeCommit
  extends Pick<CommitResult, 'outcome' | 'generation' | 'foreign' | 'bytes' | 'messages'> {
  readonly failures: readonly ScopeFailure[]
  /** Set when the kernel rejected only the rest: the part that was sent ahead is committed. */
  readonly partial?: true
}

export interface ScopeFailure extends Pick<OperationFailure, 'code' | 'error'> {
  /** Undefined when the kernel rejected the whole. */
  readonly operation: ScopeOperation | undefined
}

/** Maximum number of new rules of a chain whose handles the kernel echoes: for more, listing the chain is faster. */
const ECHOED_MAX = 200
/** The same for all chains together: answers that overflow the socket's queue make the commit's outcome unknown. */
const ECHOED_ALL_MAX = 1_000
/** The operations of a scope as nf_tables operations. */
export interface Batch {
  readonly transaction: Operation[]
  /** The scope operation of each nf_tables operation. */
  readonly origins: ScopeOperation[]
  /** Failures of operations that cannot be encoded, in the form of the kernel's rejections. */
  readonly unwritable: ScopeFailure[]
  readonly resolved: ReadonlyMap<DeleteRule, Resolved>
}

export interface Given {
  readonly operations: ScopeOperations
  readonly resolved: ReadonlyMap<DeleteRule, Resolved>
  readonly kept: ReadonlySet<ScopeOperation>
}

interface Translating {
  readonly book: HandleBook
  readonly language: Language
}

export function* translate(
  { operations, resolved, kept }: Given,
  { book, language }: Translating,
): Steps<Batch> {
  const batch: Batch = { transaction: [], origins: [], unwritable: [], resolved }
  const echoed = echoedChains(operations, book)
  const pauses = new Pauses()
  for (const operation of operations) {
    if (pauses.due()) yield
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
      if (handle === undefined) throw new Error(`${operation.chain}: a rule to delete has no handle`)
      return { verb: 'delete-rule', family, table, chain: operation.chain, handle }
    }
  }
}

/** Returns the chains in the book whose new handles the kernel will echo. */
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
  const echoed = new Set<string>()
  let total = 0
  for (const [key, count] of [...rules].sort(([, a], [, b]) => a - b)) {
    total += count
    if (count > ECHOED_MAX || total > ECHOED_ALL_MAX) break
    echoed.add(key)
  }
  return echoed
}

/** Updates the book after a commit. */
export function settle(
  book: HandleBook,
  { transaction, origins, resolved }: Batch,
  result: CommitResult,
): void {
  const isOwn = result.outcome === 'committed' && !result.foreign
  if (isOwn) book.committed(result.generation)
  else book.reached(result.generation)
  if (result.outcome === 'unknown') book.forgetAll()
  if (result.outcome !== 'committed' || book.isEmpty) return
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

/** Returns the failures. An error about the batch as a whole belongs to no operation. */
export function failuresOf({ failures }: CommitResult, batch: Batch): readonly ScopeFailure[] {
  const origins = originsOf(failures, batch)
  return failures.map(({ operation: sent, code, error }) => {
    const isOfWhole = error instanceof NetlinkError && error.operation === 'commit'
    const operation = isOfWhole ? undefined : origins.get(sent)
    return { operation, code, error: aboutRule(operation, error) }
  })
}

/** Maps failed operations to their scope operations; there may be as many as there are operations. */
export function originsOf(
  failures: readonly OperationFailure[],
  { transaction, origins }: Batch,
): ReadonlyMap<Operation, ScopeOperation> {
  if (failures.length === 0) return new Map()
  return new Map(
    origins.flatMap((origin, i) => {
      const operation = transaction[i]
      return operation === undefined ? [] : [[operation, origin] as const]
    }),
  )
}

/** Adds the rule to the error: the kernel names only the chain, and not the rule or the match that it lacks. */
function aboutRule(operation: ScopeOperation | undefined, error: Error): Error {
  if (operation?.verb !== 'add-rule' && operation?.verb !== 'insert-rule') return error
  return new Error(`${error.message}: ${printRule(operation.rule, operation.family)}`, { cause: error })
}
