import type { Clock } from '../../base/clock.ts'
import { finish, finishInSlices } from '../../base/steps.ts'
import { Connection, REQUEST_SEQUENCE_MAX } from '../../netlink/connection.ts'
import type { BurstError, BurstReplies } from '../../netlink/conversation.ts'
import { errnoNumber } from '../../netlink/errno.ts'
import { NetlinkError, OutcomeUnknownError } from '../../netlink/errors.ts'
import { SystemError, type Transport } from '../../netlink/transport.ts'
import type { Batch } from './batch.ts'
import { describeOperation } from './describe.ts'
import { elementsIn, encodeBatch } from './encode.ts'
import { type Listing, listTables, readGeneration, type TableName } from './list.ts'
import type { Operation, OwnedElement, Transaction } from './operation.ts'

/** The kernel's nf_tables, as far as this project speaks with it. */
export interface NftClient {
  /** NFT_MSG_GETGEN: grows with every commit by anyone in this network namespace. Synchronous, under 10 us. */
  generation(): number
  /** Sends one batch. What the kernel says is in the result; only bugs of ours throw. */
  commit(transaction: Transaction, options?: { readonly generation?: number }): Promise<CommitResult>
  /**
   * Reads whole tables, bracketed by generation reads and repeated until nobody committed meanwhile. Tables that do
   * not exist are left out. Elements come grouped by set; those of sets with NFT_SET_EVAL carry expiresMs.
   */
  list(tables: readonly TableName[]): Promise<Listing>
  close(): Promise<void>
}

export type { Listing, TableName }

export interface CommitResult {
  readonly outcome: 'committed' | 'stale' | 'refused' | 'unknown'
  readonly generation: number
  /** Somebody else committed between the previous look at the generation and this commit. */
  readonly foreign: boolean
  readonly failures: readonly OperationFailure[]
  readonly bytes: number
  readonly messages: number
  readonly durationMs: number
}

/** One message of a batch that the kernel refused. */
export interface OperationFailure {
  readonly operation: Operation
  /** The elements among which the culprit is: one when the kernel told its offset, all of the message otherwise. */
  readonly elements: readonly OwnedElement[]
  readonly error: Error
}

export interface NftClientOptions {
  readonly transport: Transport
  readonly clock: Clock
  /** Transactions with more elements than this are sent from the thread pool. */
  readonly asyncElements?: number
  /** Longest that one commit or one dump may take. */
  readonly timeoutMs?: number
}

const ASYNC_ELEMENTS = 500
const SYNC_BYTES_MAX = 64 * 1024
const ENCODE_SLICE_MS = 5
const BATCH_SEQUENCE_FIRST = REQUEST_SEQUENCE_MAX + 1
const SEQUENCE_MAX = 0xffff_ffff

/** Failures of sendmsg that may pass: nothing was sent, so that sending again is safe. */
const PASSING: ReadonlySet<string> = new Set(['EINTR', 'EAGAIN', 'ENOBUFS', 'ENOMEM'])
const SEND_ATTEMPTS = 4
const SEND_RETRY_DELAY_MS = 5

export function createNftClient(options: NftClientOptions): NftClient {
  return new NetlinkNftClient(options)
}

class NetlinkNftClient implements NftClient {
  readonly #connection: Connection
  readonly #clock: Clock
  readonly #asyncElements: number
  #batchSequence = BATCH_SEQUENCE_FIRST
  /** The last generation that anyone was told. */
  #seen: number | undefined

  constructor({ transport, clock, asyncElements = ASYNC_ELEMENTS, timeoutMs }: NftClientOptions) {
    this.#connection = new Connection({ transport, clock, ...(timeoutMs === undefined ? {} : { timeoutMs }) })
    this.#clock = clock
    this.#asyncElements = asyncElements
  }

  generation(): number {
    this.#seen = readGeneration(this.#connection).id
    return this.#seen
  }

  async list(tables: readonly TableName[]): Promise<Listing> {
    const listing = await listTables(this.#connection, this.#clock, tables)
    this.#seen = listing.generation
    return listing
  }

  async commit(
    transaction: Transaction,
    options: { readonly generation?: number } = {},
  ): Promise<CommitResult> {
    const startMs = this.#clock.nowMs()
    const first = transaction[0]
    if (first === undefined) return this.#nothing()
    const batch = await this.#encode(transaction, options.generation)
    const seen = this.#seen
    const before = this.generation()
    const replies = await this.#send(batch, elementsIn(transaction) > this.#asyncElements)
    const after = this.generation()
    const failures = failuresOf(replies, batch, first)
    const outcome = outcomeOf(replies, { before, after })
    const expected = outcome === 'committed' ? nextGeneration(before) : before
    return {
      outcome,
      generation: after,
      foreign: (seen !== undefined && seen !== before) || after !== expected,
      failures,
      bytes: batch.bytes.length,
      messages: batch.messages,
      durationMs: this.#clock.nowMs() - startMs,
    }
  }

  close(): Promise<void> {
    return this.#connection.close()
  }

  #nothing(): CommitResult {
    const seen = this.#seen
    const generation = this.generation()
    const foreign = seen !== undefined && seen !== generation
    return { outcome: 'committed', generation, foreign, failures: [], bytes: 0, messages: 0, durationMs: 0 }
  }

  async #encode(transaction: Transaction, generation: number | undefined): Promise<Batch> {
    const firstSequence = this.#takeSequences(transaction.length + elementsIn(transaction) + 2)
    const steps = encodeBatch(transaction, { firstSequence, generation })
    const isSmall = transaction.length + elementsIn(transaction) <= this.#asyncElements
    if (isSmall) return finish(steps)
    const clock = this.#clock
    const nowMs = (): number => clock.nowMs()
    return finishInSlices(steps, { sliceMs: ENCODE_SLICE_MS, nowMs, breathe: () => clock.breathe() })
  }

  /** Reserves more numbers than a batch can need, since it is not known before it is encoded. */
  #takeSequences(count: number): number {
    if (this.#batchSequence + count > SEQUENCE_MAX) this.#batchSequence = BATCH_SEQUENCE_FIRST
    const first = this.#batchSequence
    this.#batchSequence += count
    return first
  }

  /** Sends, again where that may help. A send that failed for good counts as a refusal of the whole. */
  async #send(batch: Batch, manyElements: boolean): Promise<BurstReplies> {
    const pool = manyElements || batch.bytes.length > SYNC_BYTES_MAX
    for (let attempt = 1; ; attempt++) {
      try {
        return await this.#connection.burst(batch, {
          pool,
          object: `nf_tables batch of ${batch.messages} messages`,
        })
      } catch (error) {
        if (error instanceof OutcomeUnknownError) return { errors: [], loss: error }
        if (!(error instanceof SystemError)) throw error
        if (!PASSING.has(error.code) || attempt === SEND_ATTEMPTS) return notSent(error, batch)
      }
      await pause(this.#clock, SEND_RETRY_DELAY_MS * attempt)
    }
  }
}

function notSent(error: SystemError, batch: Batch): BurstReplies {
  const errno = errnoNumber(error.code) || Math.abs(error.errno)
  const extendedAck = `nothing was sent (${error.message})`
  return {
    errors: [{ sequence: batch.firstSequence, errno, extendedAck, offset: undefined }],
    loss: undefined,
  }
}

function isStale({ errors }: BurstReplies): boolean {
  return errors.some(({ errno }) => errno === errnoNumber('ERESTART'))
}

/**
 * One error undoes the whole batch. Without any, only a generation that moved proves that it was committed: an
 * acknowledgement of 0 comes for messages of a batch that was cut off, too. A batch that changes nothing (elements
 * that exist already) leaves the generation as it is, and is `unknown` as well.
 */
function outcomeOf(
  replies: BurstReplies,
  { before, after }: { readonly before: number; readonly after: number },
): CommitResult['outcome'] {
  if (isStale(replies)) return 'stale'
  if (replies.errors.length > 0) return 'refused'
  return replies.loss !== undefined || after === before ? 'unknown' : 'committed'
}

/** 0 is left out when the kernel's counter starts over. */
function nextGeneration(generation: number): number {
  return generation === 0xffff_ffff ? 1 : generation + 1
}

/** Errors about the batch as a whole (its first message's) are blamed on its first operation, and on no element. */
function failuresOf(replies: BurstReplies, batch: Batch, first: Operation): readonly OperationFailure[] {
  return isStale(replies) ? [] : replies.errors.map(error => failureOf(error, batch, first))
}

function failureOf({ sequence, errno, extendedAck, offset }: BurstError, batch: Batch, first: Operation) {
  const operation = batch.operationAt(sequence, offset)
  const elements = batch.elementsAt(sequence, offset)
  const words =
    operation === undefined
      ? { operation: 'commit', object: `nf_tables batch of ${batch.messages} messages` }
      : describeOperation(operation, elements)
  const error = new NetlinkError({ ...words, errno, extendedAck, offset, sequence })
  return { operation: operation ?? first, elements, error }
}

function pause(clock: Clock, delayMs: number): Promise<void> {
  return new Promise(resolve => clock.after(delayMs, resolve))
}
