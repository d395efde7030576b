import type { Clock } from '../../base/clock.ts'
import type { Octets } from '../../base/octets.ts'
import { finish, finishInSlices } from '../../base/steps.ts'
import { type DatagramReplies, sendDatagram } from '../../netlink/batch.ts'
import type { ByteView } from '../../netlink/bytes.ts'
import { Connection } from '../../netlink/connection.ts'
import { NFNL_SUBSYS_NFTABLES } from '../../netlink/constants.ts'
import type { BurstError } from '../../netlink/conversation.ts'
import { errnoNumber } from '../../netlink/errno.ts'
import { NetlinkError } from '../../netlink/errors.ts'
import type { Message } from '../../netlink/message.ts'
import type { Transport } from '../../netlink/transport.ts'
import { NFT_MSG_NEWRULE } from './constants.ts'
import { readCounters } from './counters.ts'
import { describeOperation } from './describe.ts'
import { elementsIn, encodeBatch, nameGeneration } from './encode.ts'
import type { EncodedTransaction } from './encoded-transaction.ts'
import { nextGeneration, readGeneration } from './generation.ts'
import type { IndexOfIpset } from './ipset-match.ts'
import { type IpsetNames, rememberIpsets, type UnwritableRule, unwritableRules } from './ipset-names.ts'
import { type Listing, listTables, type TableName } from './list.ts'
import {
  type ChainListing,
  type ChainName,
  type ChainPlace,
  type CountedRule,
  listChains,
  readRule,
  readRuleCounters,
} from './list-chains.ts'
import { missingPart } from './missing-part.ts'
import type { Operation, OwnedElement, Transaction } from './operation.ts'
import { handleIn } from './rule-walk.ts'
import { splitBatch } from './split-batch.ts'

/** The kernel's nf_tables, as far as this project speaks with it. */
export interface NftClient {
  /** NFT_MSG_GETGEN: grows with every commit by anyone in this network namespace. Synchronous, under 10 us. */
  generation(): number
  /** Sends one batch. What the kernel says is in the result; only bugs of ours throw. */
  commit(transaction: Transaction, options?: CommitOptions): Promise<CommitResult>
  /**
   * Reads whole tables, bracketed by generation reads and repeated until nobody committed meanwhile. Tables that do
   * not exist are left out. Elements come grouped by set; those of sets with NFT_SET_EVAL carry expiresMs.
   */
  list(tables: readonly TableName[]): Promise<Listing>
  /**
   * Reads chains of tables that others use as well, with the bytes of their rules (counters at zero) and their handles,
   * bracketed as `list`. Of an unsettled listing, rules may be missing where others wrote to the same table.
   */
  listChains(places: readonly ChainPlace[]): Promise<ChainListing>
  /** The bytes of one rule, counters at zero; undefined when it is gone. Synchronous, under 20 us. */
  rule(place: ChainName & { readonly handle: bigint }): Octets | undefined
  /** The rules of one chain with what they counted so far; none when there is no such chain. */
  ruleCounters(chain: ChainName): Promise<readonly CountedRule[]>
  /** What the elements of a counted set have counted; see readCounters. */
  counters(
    place: { readonly table: TableName; readonly set: string },
    onCounter: (key: Octets, packets: bigint) => void,
  ): Promise<boolean>
  close(): Promise<void>
}

export interface CommitOptions {
  /** The kernel refuses the batch (outcome `stale`) when it is at another one. */
  readonly generation?: number
  /**
   * A commit of ours that is under way: this one is encoded meanwhile, and sent when that one was committed and nobody
   * else's followed it. Otherwise the outcome is `stale`.
   */
  readonly follows?: Promise<CommitResult>
}

export type { ChainListing, ChainName, ChainPlace, CountedRule, Listing, TableName }

export interface CommitResult {
  readonly outcome: 'committed' | 'stale' | 'refused' | 'unknown'
  readonly generation: number
  /** Somebody else committed between the previous look at the generation and this commit. */
  readonly foreign: boolean
  readonly failures: readonly OperationFailure[]
  /** Of the rules that were added with `echo`, as far as the kernel's answers were not lost. */
  readonly handles: ReadonlyMap<Operation, bigint>
  readonly bytes: number
  readonly messages: number
  readonly durationMs: number
}

/** One message of a batch that the kernel refused. */
export interface OperationFailure {
  readonly operation: Operation
  /** The elements among which the culprit is: one when the kernel told its offset, all of the message otherwise. */
  readonly elements: readonly OwnedElement[]
  /** Name of the errno. */
  readonly code: string
  readonly error: Error
}

export interface NftClientOptions {
  readonly transport: Transport
  readonly clock: Clock
  /** For rules about ipsets: without it none can be written, and those that are read show numbers. */
  readonly ipsets?: IpsetNames
  /** Transactions with more elements than this are sent from the thread pool. */
  readonly asyncElements?: number
  /** Longest that one commit or one dump may take. */
  readonly timeoutMs?: number
}

const ASYNC_ELEMENTS = 500
/** Stands in a batch until it is known what it follows. */
const UNKNOWN_GENERATION = 0
const SYNC_BYTES_MAX = 64 * 1024
const ENCODE_SLICE_MS = 5
const NEWRULE = (NFNL_SUBSYS_NFTABLES << 8) | NFT_MSG_NEWRULE
/** Room for the rest of a batch beside the longest list of elements. */
const BATCH_OVERHEAD_BYTES = 2_048

/** A client over a socket of NETLINK_NETFILTER, which it closes. */
export function createNftClient(options: NftClientOptions): NftClient {
  return new NetlinkNftClient(options)
}

class NetlinkNftClient implements NftClient {
  readonly #connection: Connection
  readonly #clock: Clock
  readonly #ipsets: IpsetNames | undefined
  readonly #asyncElements: number
  /** The last generation that anyone was told. */
  #seen: number | undefined

  constructor(options: NftClientOptions) {
    const { transport, clock, ipsets, asyncElements = ASYNC_ELEMENTS, timeoutMs } = options
    this.#connection = new Connection({ transport, clock, timeoutMs })
    this.#clock = clock
    this.#ipsets = ipsets
    this.#asyncElements = asyncElements
  }

  generation(): number {
    this.#seen = readGeneration(this.#connection).id
    return this.#seen
  }

  async list(tables: readonly TableName[]): Promise<Listing> {
    const context = { connection: this.#connection, clock: this.#clock, ipsets: this.#ipsets }
    const listing = await listTables(context, tables)
    this.#seen = listing.generation
    return listing
  }

  async listChains(places: readonly ChainPlace[]): Promise<ChainListing> {
    const listing = await listChains({ connection: this.#connection, clock: this.#clock }, places)
    this.#seen = listing.generation
    return listing
  }

  rule(place: ChainName & { readonly handle: bigint }): Octets | undefined {
    return readRule(this.#connection, place)
  }

  ruleCounters(chain: ChainName): Promise<readonly CountedRule[]> {
    return readRuleCounters(this.#connection, chain)
  }

  counters(
    place: { readonly table: TableName; readonly set: string },
    onCounter: (key: Octets, packets: bigint) => void,
  ): Promise<boolean> {
    return readCounters(this.#connection, place, onCounter)
  }

  async commit(transaction: Transaction, options: CommitOptions = {}): Promise<CommitResult> {
    const startMs = this.#clock.nowMs()
    const first = transaction[0]
    if (first === undefined) return this.#nothing()
    const { indexOf } = rememberIpsets(this.#ipsets)
    const unwritable = unwritableRules(transaction, indexOf)
    if (unwritable.length > 0) return this.#unsent(unwritable)
    const { follows, generation = follows && UNKNOWN_GENERATION } = options
    const batch = await this.#encode(transaction, { generation, indexOfIpset: indexOf })
    const before = await follows
    if (before !== undefined && (before.outcome !== 'committed' || before.foreign))
      return { ...this.#nothing(), outcome: 'stale' }
    if (before !== undefined) nameGeneration(batch, before.generation)
    const sent = await this.#sendParts(batch, elementsIn(transaction) > this.#asyncElements)
    return {
      outcome: sent.outcome,
      generation: sent.generation,
      foreign: sent.foreign,
      failures: failuresOf(sent.replies, batch, first),
      handles: sent.handles,
      bytes: batch.bytes.length,
      messages: batch.messages,
      durationMs: this.#clock.nowMs() - startMs,
    }
  }

  /**
   * Commits a batch in as many parts as the socket makes necessary: one, but for very large batches in a user
   * namespace, where buffers cannot be forced. When a later part fails, the kernel is between two states that nobody
   * asked for, and only reading it back tells which: the outcome is then `unknown`. So it is when somebody else committed
   * before a part that deletes rules by their numbers, which may be others' by then.
   */
  async #sendParts(batch: EncodedTransaction, manyElements: boolean): Promise<SentBatch> {
    const seen = this.#seen
    const start = this.generation()
    const foreign = seen !== undefined && seen !== start
    const handles = new Map<Operation, bigint>()
    let sent: SentBatch = { outcome: 'committed', generation: start, foreign, handles, replies: NO_REPLIES }
    const isByNumber = (message: number): boolean =>
      batch.operationAt(batch.firstSequence + message)?.verb === 'delete-rule'
    const parts = splitBatch(batch.bytes, this.#connection.sendLimitBytes, isByNumber)
    for (const bytes of parts) {
      const before = sent.generation
      const pool = manyElements || bytes.length > SYNC_BYTES_MAX
      const replies = await this.#send(batch, { bytes, pool, handles })
      const generation = this.generation()
      const outcome = outcomeOf(replies, { before, after: generation })
      const expected = outcome === 'committed' ? nextGeneration(before) : before
      sent = {
        outcome: outcome === 'committed' || bytes === parts[0] ? outcome : 'unknown',
        generation,
        foreign: sent.foreign || generation !== expected,
        handles,
        replies,
      }
      if (outcome !== 'committed') break
    }
    return sent
  }

  close(): Promise<void> {
    return this.#connection.close()
  }

  #nothing(): CommitResult {
    const seen = this.#seen
    const generation = this.generation()
    const foreign = seen !== undefined && seen !== generation
    const nothing = { failures: [], handles: new Map(), bytes: 0, messages: 0, durationMs: 0 }
    return { outcome: 'committed', generation, foreign, ...nothing }
  }

  /** What cannot be encoded is refused as the kernel would refuse it: the whole, with an error for each culprit. */
  #unsent(rules: readonly UnwritableRule[]): CommitResult {
    const failures = rules.map(({ operation, error }) => ({
      operation,
      elements: [],
      code: error.code,
      error: new NetlinkError({
        ...describeOperation(operation, []),
        errno: errnoNumber(error.code),
        extendedAck: error.message,
        cause: error,
      }),
    }))
    return { ...this.#nothing(), outcome: 'refused', failures }
  }

  async #encode(transaction: Transaction, options: BatchOptions): Promise<EncodedTransaction> {
    // More numbers than the batch can need, since it is not known before it is encoded.
    const firstSequence = this.#connection.takeSequences(transaction.length + elementsIn(transaction) + 2)
    const elementListBytesMax = this.#connection.sendLimitBytes - BATCH_OVERHEAD_BYTES
    const steps = encodeBatch(transaction, { firstSequence, elementListBytesMax, ...options })
    const isSmall = transaction.length + elementsIn(transaction) <= this.#asyncElements
    if (isSmall) return finish(steps)
    const clock = this.#clock
    const nowMs = (): number => clock.nowMs()
    return finishInSlices(steps, { sliceMs: ENCODE_SLICE_MS, nowMs, breathe: () => clock.breathe() })
  }

  /** A send that failed for good counts as a refusal of the whole. */
  async #send(batch: EncodedTransaction, { bytes, pool, handles }: SentPart): Promise<Replies> {
    const object = `nf_tables batch of ${batch.messages} messages`
    const link = { connection: this.#connection, clock: this.#clock }
    const has = (sequence: number): boolean => batch.has(sequence)
    const onMessage = (view: ByteView, message: Message): void =>
      noteHandle(handles, batch, { view, message })
    const { errors, loss, unsent } = await sendDatagram(link, { bytes, has, onMessage }, { pool, object })
    if (unsent === undefined) return { errors, loss }
    return { errors: [{ sequence: batch.firstSequence, ...unsent }], loss }
  }
}

type Replies = Pick<DatagramReplies, 'errors' | 'loss'>

interface BatchOptions {
  readonly generation: number | undefined
  readonly indexOfIpset: IndexOfIpset
}

interface SentPart {
  readonly bytes: Uint8Array
  /** From the thread pool, so that the event loop is free meanwhile. */
  readonly pool: boolean
  /** Where handles go that the kernel tells. */
  readonly handles: Map<Operation, bigint>
}

interface SentBatch extends Pick<CommitResult, 'outcome' | 'generation' | 'foreign' | 'handles'> {
  /** Of the last part that was sent. */
  readonly replies: Replies
}

const NO_REPLIES: Replies = { errors: [], loss: undefined }

/** NFT_MSG_NEWRULE carries the number of the message that asked for it. */
function noteHandle(
  handles: Map<Operation, bigint>,
  batch: EncodedTransaction,
  { view, message }: { readonly view: ByteView; readonly message: Message },
): void {
  if (message.type !== NEWRULE) return
  const operation = batch.operationAt(message.sequence)
  if (operation !== undefined) handles.set(operation, handleIn(view, message))
}

function isStale({ errors }: Replies): boolean {
  return errors.some(({ errno }) => errno === errnoNumber('ERESTART'))
}

/**
 * One error undoes the whole batch. Without any, only a generation that moved proves that it was committed: an
 * acknowledgement of 0 comes for messages of a batch that was cut off, too. A batch that changes nothing (elements
 * that exist already) leaves the generation as it is, and is `unknown` as well.
 */
function outcomeOf(
  replies: Replies,
  { before, after }: { readonly before: number; readonly after: number },
): CommitResult['outcome'] {
  if (isStale(replies)) return 'stale'
  if (replies.errors.length > 0) return 'refused'
  return replies.loss !== undefined || after === before ? 'unknown' : 'committed'
}

/** Errors about the batch as a whole (its first message's) are blamed on its first operation, and on no element. */
function failuresOf(
  replies: Replies,
  batch: EncodedTransaction,
  first: Operation,
): readonly OperationFailure[] {
  return isStale(replies) ? [] : replies.errors.map(error => failureOf(error, batch, first))
}

function failureOf(failed: BurstError, batch: EncodedTransaction, first: Operation) {
  const { sequence, errno, offset } = failed
  const operation = batch.operationAt(sequence, offset)
  const elements = batch.elementsAt(sequence, offset)
  const words =
    operation === undefined
      ? { operation: 'commit', object: `nf_tables batch of ${batch.messages} messages` }
      : describeOperation(operation, elements)
  const extendedAck = failed.extendedAck ?? (operation && lackOf(operation, failed, batch))
  const error = new NetlinkError({ ...words, errno, extendedAck, offset, sequence })
  return { operation: operation ?? first, elements, code: error.code, error }
}

/** The kernel's own words are ENOENT alone where it has no module. */
function lackOf(operation: Operation, { sequence, errno, offset }: BurstError, batch: EncodedTransaction) {
  if (errno !== errnoNumber('ENOENT')) return undefined
  return missingPart(operation, offset === undefined ? undefined : batch.expressionAt(sequence, offset))
}
