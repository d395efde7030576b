import { type Clock, finish, finishInSlices, slicingOf } from '../../base/clock.ts'
import type { Octets } from '../../base/octets.ts'
import { ByteWriter } from '../../netlink/attribute.ts'
import { Connection, type ConnectionOptions, sendDatagram } from '../../netlink/connection.ts'
import type { Burst } from '../../netlink/conversation.ts'
import { setSequence } from '../../netlink/message.ts'
import { isNetlinkFailure } from '../../netlink/transport.ts'
import { generationIn, generationReader, generationRequest, isGeneration } from './dump.ts'
import { encodeBatch } from './encode.ts'
import { failuresOf, isStale, type OperationFailure, type Replies } from './failures.ts'
import type { IpsetNames } from './ipset-match.ts'
import { type Listing, listTables, readCounters } from './list.ts'
import {
  type ChainListing,
  type ChainName,
  type ChainPlace,
  type CountedRule,
  listChains,
  readRule,
  readRuleCounters,
} from './list-chains.ts'
import type { TableName } from './state.ts'
import {
  type EncodedTransaction,
  elementsIn,
  nameGeneration,
  nextGeneration,
  splitBatch,
  type Transaction,
} from './transaction.ts'

/** A client for the kernel's nf_tables, with the operations that kprobe uses. */
export interface NftClient {
  /** Reads the generation (NFT_MSG_GETGEN): each commit in this network namespace raises it. Synchronous, under 10 us. */
  generation(): number
  /**
   * Sends one batch. The result has the kernel's answer. Rejects, and sends nothing, for a rule about an ipset that does not
   * exist or cannot be looked up.
   */
  commit(transaction: Transaction, options?: CommitOptions): Promise<CommitResult>
  /**
   * Reads whole tables between two reads of the generation, and repeats that until no other program commits
   * meanwhile. Skips tables that do not exist. Elements come grouped by set; those of sets with NFT_SET_EVAL carry
   * expiresMs.
   */
  list(tables: readonly TableName[], options?: ReadOptions): Promise<Listing>
  /**
   * Reads chains of tables that other programs use as well, with the bytes of their rules (counters at zero) and
   * their handles, bracketed as `list`. An unsettled listing may lack rules where another program wrote to the table.
   */
  listChains(places: readonly ChainPlace[], options?: ReadOptions): Promise<ChainListing>
  /** Reads the bytes of one rule, counters at zero; undefined when it is gone. Synchronous, under 20 us. */
  rule(place: ChainName & { readonly handle: bigint }): Octets | undefined
  /** Reads the rules of one chain with their counts; none when the chain does not exist. */
  ruleCounters(chain: ChainName): Promise<readonly CountedRule[]>
  /** Reads the counts of the elements of a counted set; see readCounters. */
  counters(
    place: { readonly table: TableName; readonly set: string },
    onCounter: (key: Octets, packets: bigint) => void,
  ): Promise<boolean>
  close(): Promise<void>
}

export interface ReadOptions {
  /** Only shows the current state: earlier commits of other programs still count as foreign at the next commit. */
  readonly aside?: boolean
}

export interface CommitOptions {
  /** The expected generation: the kernel rejects the batch (outcome `stale`) when it is at another one. */
  readonly generation?: number
  /**
   * A commit of ours in flight. This transaction is encoded meanwhile, and sent when that one has committed and no
   * other program has committed since. Otherwise the outcome is `stale`.
   */
  readonly follows?: Promise<CommitResult>
}

export type { ChainListing, ChainName, ChainPlace, CountedRule, Listing, TableName }

export interface CommitResult {
  readonly outcome: 'committed' | 'stale' | 'refused' | 'unknown'
  readonly generation: number
  /** Another program committed between the previous read of the generation and this commit. */
  readonly foreign: boolean
  readonly failures: readonly OperationFailure[]
  readonly bytes: number
  readonly messages: number
  readonly durationMs: number
}

export interface NftClientOptions extends ConnectionOptions {
  /** Names of ipsets. Without them, kprobe writes no rules about ipsets, and rules that it reads show numbers. */
  readonly ipsets?: IpsetNames
}

/** Transactions with more elements than this are sent from the thread pool. */
const ASYNC_ELEMENTS = 500
/** The kernel takes a batch that names this at any generation. */
const ANY_GENERATION = 0
/** Tries of a batch that name the generation last seen, before it goes out at any. */
const GUARDED_TRIES = 3
/** A longer buffer is not kept for the next batch, and a longer part is sent from the thread pool. */
const SMALL_BYTES_MAX = 64 * 1024
/** Room for the rest of a batch, apart from the longest list of elements. */
const BATCH_OVERHEAD_BYTES = 2_048

/** Creates a client over a NETLINK_NETFILTER socket; the client closes it. */
export function createNftClient(options: NftClientOptions): NftClient {
  return new NetlinkNftClient(options)
}

class NetlinkNftClient implements NftClient {
  readonly #connection: Connection
  readonly #clock: Clock
  readonly #ipsets: IpsetNames | undefined
  readonly #readGeneration: () => number
  readonly #generationRequest = generationRequest()
  /** The last generation that a caller has received. */
  #seen: number | undefined
  #spare: ByteWriter | undefined

  constructor(options: NftClientOptions) {
    this.#connection = new Connection(options)
    this.#clock = options.clock
    this.#ipsets = options.ipsets
    this.#readGeneration = generationReader(this.#connection)
  }

  generation(): number {
    this.#seen = this.#readGeneration()
    return this.#seen
  }

  async list(tables: readonly TableName[], { aside = false }: ReadOptions = {}): Promise<Listing> {
    const context = { connection: this.#connection, clock: this.#clock, ipsets: this.#ipsets }
    const listing = await listTables(context, tables)
    if (!aside) this.#seen = listing.generation
    return listing
  }

  async listChains(
    places: readonly ChainPlace[],
    { aside = false }: ReadOptions = {},
  ): Promise<ChainListing> {
    const listing = await listChains({ connection: this.#connection, clock: this.#clock }, places)
    if (!aside) this.#seen = listing.generation
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
    const out = this.#takeBuffer()
    const batch = await this.#encode(transaction, out)
    const before = await options.follows
    if (before !== undefined && (before.outcome !== 'committed' || before.foreign))
      return { ...this.#nothing(), outcome: 'stale' }
    const pool = elementsIn(transaction) > ASYNC_ELEMENTS
    const sent = await this.#sendGuarded(batch, before?.generation ?? options.generation, pool)
    const failures = failuresOf(sent.replies, batch, first)
    // A send that outlasted the deadline still reads the buffer.
    if (sent.replies.loss === undefined) this.#spare = out
    return {
      outcome: sent.outcome,
      generation: sent.generation,
      foreign: sent.foreign,
      failures,
      bytes: batch.bytes.length,
      messages: batch.messages,
      durationMs: this.#clock.nowMs() - startMs,
    }
  }

  /**
   * Commits a batch that names the generation it expects: the one that the caller asked for, or the last one seen. In
   * the latter case a commit of another program only counts as foreign, and the batch is sent again.
   */
  async #sendGuarded(
    batch: EncodedTransaction,
    asked: number | undefined,
    pool: boolean,
  ): Promise<SentBatch> {
    const seen = this.#seen ?? asked ?? this.generation()
    let before = asked ?? seen
    for (let attempt = 1; ; attempt++) {
      const isAny = attempt > GUARDED_TRIES
      nameGeneration(batch.bytes, isAny ? ANY_GENERATION : before)
      const sent = await this.#sendParts(batch, before, pool)
      if (sent.outcome === 'stale' && asked !== undefined)
        return { ...sent, foreign: sent.generation !== seen }
      if (sent.outcome !== 'stale' || isAny) return attempt === 1 ? sent : { ...sent, foreign: true }
      before = sent.generation
    }
  }

  /**
   * Commits a batch in as few parts as the socket allows: one part, except for very large batches in a user
   * namespace, where buffers cannot be forced. When a later part fails, the kernel is in an intermediate state, which
   * only a readback can determine: the outcome is `unknown`. The outcome is also `unknown` when another program
   * commits before a part that deletes rules by handle, since those handles may then belong to other rules.
   */
  async #sendParts(batch: EncodedTransaction, start: number, manyElements: boolean): Promise<SentBatch> {
    let sent: SentBatch = {
      outcome: 'committed',
      generation: start,
      foreign: false,
      replies: NO_REPLIES,
    }
    const isByNumber = (message: number): boolean =>
      batch.operationAt(batch.firstSequence + message)?.verb === 'delete-rule'
    const parts = splitBatch(batch.bytes, this.#connection.sendLimitBytes, isByNumber)
    for (const bytes of parts) {
      const before = sent.generation
      const pool = manyElements || bytes.length > SMALL_BYTES_MAX
      const replies = await this.#send(batch, { bytes, pool, before })
      const { generation } = replies
      const outcome = outcomeOf(replies, { before, after: generation })
      const expected = outcome === 'committed' ? nextGeneration(before) : before
      sent = {
        outcome: outcome === 'committed' || bytes === parts[0] ? outcome : 'unknown',
        generation,
        foreign: sent.foreign || generation !== expected,
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
    const nothing = { failures: [], bytes: 0, messages: 0, durationMs: 0 }
    return { outcome: 'committed', generation, foreign, ...nothing }
  }

  /** Gives the buffer of an earlier batch, if it is not in use. */
  #takeBuffer(): ByteWriter {
    const spare = this.#spare
    this.#spare = undefined
    if (spare === undefined || spare.bytes.length > SMALL_BYTES_MAX) return new ByteWriter()
    spare.length = 0
    return spare
  }

  async #encode(transaction: Transaction, out: ByteWriter): Promise<EncodedTransaction> {
    // An upper limit: the exact count is known only after encoding.
    const firstSequence = this.#connection.takeSequences(transaction.length + elementsIn(transaction) + 2)
    const elementListBytesMax = this.#connection.sendLimitBytes - BATCH_OVERHEAD_BYTES
    const generation = ANY_GENERATION
    const steps = encodeBatch(transaction, {
      firstSequence,
      elementListBytesMax,
      generation,
      indexOfIpset: name => this.#ipsets?.indexOf(name),
      out,
    })
    const isSmall = transaction.length + elementsIn(transaction) <= ASYNC_ELEMENTS
    if (isSmall) return finish(steps)
    return finishInSlices(steps, slicingOf(this.#clock))
  }

  /** Sends one part and requests the generation after it. A send that fails for good counts as a rejected batch. */
  async #send(batch: EncodedTransaction, part: SentPart): Promise<SentReplies> {
    const { bytes, pool, before } = part
    const object = `nf_tables batch of ${batch.messages} messages`
    const link = { connection: this.#connection, clock: this.#clock }
    const question = this.#connection.takeSequences(1)
    let generation: number | undefined
    const burst: Burst = {
      bytes,
      last: setSequence(this.#generationRequest, question),
      has: sequence => sequence === question || batch.has(sequence),
      onMessage(view, message) {
        if (message.sequence === question && isGeneration(message)) generation = generationIn(view, message)
      },
    }
    const replies = await sendDatagram(link, burst, { pool, object })
    const { loss, unsent } = replies
    // A failed query reveals nothing about the part.
    const errors = replies.errors.filter(({ sequence }) => sequence !== question)
    try {
      generation ??= this.#readGeneration()
    } catch (error) {
      if (!isNetlinkFailure(error)) throw error
      // Nothing proves the commit then.
      generation = before
    }
    this.#seen = generation
    if (unsent === undefined) return { errors, loss, generation }
    return { errors: [{ sequence: batch.firstSequence, ...unsent }], loss, generation }
  }
}

interface SentReplies extends Replies {
  /** The generation after the part. */
  readonly generation: number
}

interface SentPart {
  readonly bytes: Uint8Array
  /** Sends from the thread pool, so that the event loop stays free. */
  readonly pool: boolean
  /** The generation before the part. */
  readonly before: number
}

interface SentBatch extends Pick<CommitResult, 'outcome' | 'generation' | 'foreign'> {
  /** The replies to the last part that was sent. */
  readonly replies: Replies
}

const NO_REPLIES: Replies = { errors: [], loss: undefined }

/**
 * Derives the outcome. One error undoes the whole batch. Without errors, only a new generation proves the commit: the
 * kernel also acknowledges, with 0, messages of a batch that was cut off. A batch that changes nothing (all elements
 * exist) keeps the generation, so it is `unknown` as well.
 */
function outcomeOf(
  replies: Replies,
  { before, after }: { readonly before: number; readonly after: number },
): CommitResult['outcome'] {
  if (isStale(replies)) return 'stale'
  if (replies.errors.length > 0) return 'refused'
  return replies.loss !== undefined || after === before ? 'unknown' : 'committed'
}
