import { finish, finishInSlices } from '../../base/steps.ts'
import type { CommitResult, OperationFailure } from '../nft/client.ts'
import { commitAhead, countAhead } from './scope-ahead.ts'
import {
  type Batch,
  failuresOf,
  type Given,
  originsOf,
  type ScopeCommit,
  type ScopeCommitOptions,
  settle,
  translate,
} from './scope-batch.ts'
import type { ScopeOperation, ScopeOperations } from './scope-operation.ts'
import { resolveDeletions } from './scope-resolve.ts'

export type { ScopeCommit, ScopeCommitOptions }

/** A batch that names a generation is sent so often while others commit in between. */
const TRIES = 6
const SLICED_FROM = 500

/**
 * Sends operations as one batch that names the generation at which the rules that go were verified. Very many chains that
 * nothing leads to yet go ahead of it. Chains that the kernel does not let go, since rules of others lead to them, are
 * emptied and stay. Throws only for bugs of ours.
 */
export async function commitScope(
  operations: ScopeOperations,
  options: ScopeCommitOptions,
): Promise<ScopeCommit> {
  const { client, book, generation: asked } = options
  const start = await client.commit([])
  book.reached(start.generation)
  // Whoever asks for none has met others who always commit: several commits would meet them oftener than one.
  const count = asked === undefined ? 0 : countAhead(operations)
  if (count === 0) return commitWhole(operations, options, start)
  if (asked !== start.generation) return ended('stale', start)
  const ahead = await commitAhead(operations.slice(0, count), options, start)
  if (ahead.outcome !== 'committed') return ahead
  if (ahead.foreign) return { ...ahead, outcome: 'stale' }
  const rest = operations.slice(count)
  const { generation } = ahead
  const end = await commitWhole(rest, { ...options, generation }, { generation, foreign: ahead.foreign })
  const bytes = ahead.bytes + end.bytes
  const messages = ahead.messages + end.messages
  return { ...end, bytes, messages, ...(end.outcome === 'refused' ? { partial: true } : {}) }
}

async function commitWhole(
  operations: ScopeOperations,
  options: ScopeCommitOptions,
  start: Start,
): Promise<ScopeCommit> {
  const { client, book, generation: asked } = options
  let { generation, foreign } = start
  const kept = new Set<ScopeOperation>()
  for (let tries = 1; ; tries++) {
    if (asked !== undefined && asked !== generation) return ended('stale', { generation, foreign })
    const resolved = await resolveDeletions(options, operations)
    if (resolved === undefined) return ended('stale', { generation, foreign })
    const batch = await translated(options, { operations, resolved, kept })
    if (batch.unwritable.length > 0)
      return { ...ended('refused', { generation, foreign }), failures: batch.unwritable }
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

type Start = Pick<ScopeCommit, 'generation' | 'foreign'>

/** Nothing was sent. */
function ended(outcome: ScopeCommit['outcome'], { generation, foreign }: Start): ScopeCommit {
  return { outcome, generation, foreign, failures: [], bytes: 0, messages: 0 }
}

function translated({ book, language, slicing }: ScopeCommitOptions, given: Given): Promise<Batch> | Batch {
  const steps = translate(given, { book, language })
  return given.operations.length < SLICED_FROM ? finish(steps) : finishInSlices(steps, slicing)
}

/** Chains that cannot go, when nothing else was refused. */
function busyChains({ failures }: CommitResult, batch: Batch): readonly ScopeOperation[] {
  const isBusy = ({ operation, code }: OperationFailure): boolean =>
    operation.verb === 'delete-chain' && code === 'EBUSY'
  if (!failures.every(isBusy)) return []
  const origins = originsOf(failures, batch)
  return failures.flatMap(({ operation }) => origins.get(operation) ?? [])
}
