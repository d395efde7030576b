import { type Clock, Slice, slicingOf } from '../base/clock.ts'
import { assert } from '../base/errors.ts'
import { type ByteView, viewOf } from './attribute.ts'
import { NLMSG_OVERRUN } from './constants.ts'
import {
  type Burst,
  BurstConversation,
  type BurstReplies,
  type Conversation,
  type Request,
  RequestConversation,
  unknownOutcome,
  type Words,
} from './conversation.ts'
import { errnoNumber, OutcomeUnknownError } from './errors.ts'
import { type Acknowledgement, type Message, readMessages } from './message.ts'
import { isNetlinkFailure, SystemError, type Transport } from './transport.ts'

export interface ConnectionOptions {
  /** Closed with the connection. */
  readonly transport: Transport
  readonly clock: Clock
  /** Maximum silence of the kernel in a conversation, milliseconds; a dump takes ten times as long at most. */
  readonly timeoutMs?: number | undefined
}

/** Dumps come in datagrams of at most 32 KiB; a shorter buffer would lose some of them. */
const RECEIVE_BYTES = 128 * 1024
const TIMEOUT_MS = 15_000
/** A conversation in which the kernel is never silent takes at most this many timeouts more. */
const RENEWED_MAX = 9
/** Sequence numbers of requests end here; higher numbers belong to bursts. */
export const REQUEST_SEQUENCE_MAX = 0x7fff_ffff

/**
 * Multiplexes conversations over one netlink socket. A sequence number assigns each answer to its conversation;
 * answers without one are dropped. Requests that take several turns of the event loop (dumps, bursts) run one after
 * the other; a round trip may come between.
 */
export class Connection {
  readonly #transport: Transport
  readonly #clock: Clock
  readonly #timeoutMs: number
  readonly #buffer = new Uint8Array(RECEIVE_BYTES)
  readonly #view = viewOf(this.#buffer)
  readonly #conversations = new Set<Conversation>()
  #tail: Promise<unknown> | undefined
  #sequence = 0
  #burstSequence = REQUEST_SEQUENCE_MAX + 1
  #routing = false

  constructor({ transport, clock, timeoutMs = TIMEOUT_MS }: ConnectionOptions) {
    this.#transport = transport
    this.#clock = clock
    this.#timeoutMs = timeoutMs
  }

  /**
   * Sends a request and receives its only answer synchronously: the kernel has answered when the send returns. Throws
   * NetlinkError, OutcomeUnknownError when there is no answer, and SystemError when sending fails.
   */
  roundTrip(request: Request): void {
    const conversation = new RequestConversation(request, this.#nextSequence())
    this.#askNow(conversation, request, () => conversation.answered)
  }

  #askNow(conversation: RequestConversation, request: Request, isOver: () => boolean): void {
    const deadlineMs = this.#clock.nowMs() + this.#timeoutMs
    this.#conversations.add(conversation)
    try {
      this.#transport.sendSync(request.build(conversation.sequence))
      while (!isOver()) {
        const isLate = !this.#receive() || this.#clock.nowMs() > deadlineMs
        if (isLate && !isOver()) throw unknownOutcome(request, 'ETIMEDOUT')
      }
    } finally {
      this.#conversations.delete(conversation)
    }
    conversation.rethrow()
  }

  /**
   * Sends a request that is answered by any number of messages and NLMSG_DONE. Returns false when the kernel reports
   * a change during the dump (NLM_F_DUMP_INTR). `pool` keeps the event loop free during the send. Errors as roundTrip.
   */
  dump(request: Request, { pool = false }: { readonly pool?: boolean } = {}): Promise<boolean> {
    return this.#exclusive(request, deadlineMs => this.#list(request, deadlineMs, pool))
  }

  /** Dumps synchronously, for a few kilobytes: the kernel continues a dump as parts are received. Errors as roundTrip. */
  dumpNow(request: Request): boolean {
    const conversation = new RequestConversation(request, this.#nextSequence())
    this.#askNow(conversation, request, () => conversation.done)
    return !conversation.interrupted
  }

  /**
   * Runs many short dumps one after the other, with only occasional turns of the event loop. Returns false when one was
   * inconsistent; without `throughout` it runs none after that. Errors as roundTrip; each dump has the whole timeout.
   */
  dumps(
    words: Words,
    requests: Iterable<Request>,
    { throughout = false }: { readonly throughout?: boolean } = {},
  ): Promise<boolean> {
    return this.#exclusive(words, async () => {
      let isWhole = true
      const slice = new Slice(slicingOf(this.#clock))
      for (const request of requests) {
        isWhole = (await this.#list(request, this.#clock.nowMs() + this.#timeoutMs)) && isWhole
        if (!isWhole && !throughout) break
        if (slice.isOver) await slice.next()
      }
      return isWhole
    })
  }

  async #list(request: Request, deadlineMs: number, pool = false): Promise<boolean> {
    const conversation = new RequestConversation(request, this.#nextSequence())
    this.#conversations.add(conversation)
    try {
      const datagram = request.build(conversation.sequence)
      if (!pool) this.#transport.sendSync(datagram)
      else if (!(await this.#sendBefore(datagram, deadlineMs))) throw unknownOutcome(request, 'ETIMEDOUT')
      await this.#receiveUntil(() => conversation.done, request, deadlineMs)
    } finally {
      this.#conversations.delete(conversation)
    }
    conversation.rethrow()
    return !conversation.interrupted
  }

  /**
   * Sends messages that the kernel has processed when the send returns, and collects their errors. `pool` keeps the
   * event loop free meanwhile. Throws SystemError when sending failed: then nothing was sent.
   */
  async burst(
    burst: Burst,
    options: { readonly pool: boolean; readonly object: string },
  ): Promise<BurstReplies> {
    const request = { operation: 'commit', object: options.object }
    if (options.pool)
      return this.#exclusive(request, deadlineMs => this.#burstInPool(burst, request, deadlineMs))
    if (this.#tail !== undefined)
      return this.#exclusive(request, async deadlineMs => this.#burstNow(burst, deadlineMs))
    const deadlineMs = this.#clock.nowMs() + this.#timeoutMs
    this.#drain(deadlineMs)
    return this.#burstNow(burst, deadlineMs)
  }

  #burstNow(burst: Burst, deadlineMs: number): BurstReplies {
    const conversation = new BurstConversation(burst)
    this.#conversations.add(conversation)
    try {
      this.#transport.sendSync(burst.bytes)
      this.#collect(burst, deadlineMs)
    } finally {
      this.#conversations.delete(conversation)
    }
    return conversation
  }

  async #burstInPool(burst: Burst, request: Words, deadlineMs: number): Promise<BurstReplies> {
    const conversation = new BurstConversation(burst)
    this.#conversations.add(conversation)
    try {
      const inTime = await this.#sendBefore(burst.bytes, deadlineMs)
      if (!inTime) conversation.lose(unknownOutcome(request, 'ETIMEDOUT'))
      this.#collect(burst, deadlineMs)
    } finally {
      this.#conversations.delete(conversation)
    }
    return conversation
  }

  /** Receives the replies to a burst that was sent. */
  #collect({ last }: Burst, deadlineMs: number): void {
    try {
      if (last !== undefined) this.#transport.sendSync(last)
    } catch (error) {
      // The messages were sent: only the answer to this request is missing.
      if (!(error instanceof SystemError)) throw error
    }
    this.#drain(deadlineMs)
  }

  /** Maximum length of a datagram, as in Transport. */
  get sendLimitBytes(): number {
    return this.#transport.sendLimitBytes
  }

  /** Reserves `count` consecutive numbers for messages of bursts, which no late answer has. Returns the first. */
  takeSequences(count: number): number {
    if (this.#burstSequence + count > 0xffff_ffff) this.#burstSequence = REQUEST_SEQUENCE_MAX + 1
    const first = this.#burstSequence
    this.#burstSequence += count
    return first
  }

  async close(): Promise<void> {
    await this.#transport.close()
  }

  #nextSequence(): number {
    this.#sequence = this.#sequence >= REQUEST_SEQUENCE_MAX ? 1 : this.#sequence + 1
    return this.#sequence
  }

  /** Runs after all earlier requests. The wait lasts as long as one of them may take; the deadline begins after it. */
  async #exclusive<T>(request: Words, run: (deadlineMs: number) => Promise<T>): Promise<T> {
    const patienceMs = this.#clock.nowMs() + (RENEWED_MAX + 1) * this.#timeoutMs
    const previous = this.#tail
    const turn = (async () => {
      const free = previous === undefined || (await this.#settlesBefore(previous, patienceMs))
      if (!free) throw unknownOutcome(request, 'ETIMEDOUT')
      const deadlineMs = this.#clock.nowMs() + this.#timeoutMs
      this.#drain(deadlineMs)
      return run(deadlineMs)
    })()
    this.#queue(turn)
    return turn
  }

  /** Makes the next request wait for `work` and for everything queued before it. */
  #queue(work: Promise<unknown>): void {
    const tail: Promise<unknown> = Promise.allSettled([this.#tail, work]).then(() => {
      if (this.#tail === tail) this.#tail = undefined
    })
    this.#tail = tail
  }

  /** Returns false when the send is still in progress at the deadline; the next request waits for its end. */
  async #sendBefore(bytes: Uint8Array, deadlineMs: number): Promise<boolean> {
    const sent = this.#transport.send(bytes)
    const inTime = await this.#settlesBefore(sent, deadlineMs)
    if (inTime) await sent
    else this.#queue(sent)
    return inTime
  }

  /** Returns whether a promise is fulfilled or rejected before the deadline. */
  #settlesBefore(promise: Promise<unknown>, deadlineMs: number): Promise<boolean> {
    return new Promise(resolve => {
      const cancel = this.#clock.after(Math.max(0, deadlineMs - this.#clock.nowMs()), () => resolve(false))
      const settled = (): void => {
        cancel()
        resolve(true)
      }
      promise.then(settled, settled)
    })
  }

  /**
   * Each datagram renews the deadline, up to a limit: a process that gets little of a processor takes long, and has lost
   * nothing. What arrived while it waited for its turn is read before it gives up.
   */
  async #receiveUntil(done: () => boolean, request: Words, firstDeadlineMs: number): Promise<void> {
    const slice = new Slice(slicingOf(this.#clock))
    const endMs = firstDeadlineMs + RENEWED_MAX * this.#timeoutMs
    let deadlineMs = firstDeadlineMs
    while (!done()) {
      const received = this.#receive()
      if (done()) return
      const nowMs = this.#clock.nowMs()
      if (received) deadlineMs = Math.min(nowMs + this.#timeoutMs, endMs)
      if (nowMs >= deadlineMs) throw unknownOutcome(request, 'ETIMEDOUT')
      const { isOver } = slice
      if (!received) await this.#readableBefore(deadlineMs)
      if (isOver) await slice.next()
    }
  }

  #readableBefore(deadlineMs: number): Promise<void> {
    return new Promise(resolve => {
      let stop: (() => void) | undefined
      let ended = false
      const end = (): void => {
        ended = true
        cancel()
        stop?.()
        resolve()
      }
      const cancel = this.#clock.after(Math.max(0, deadlineMs - this.#clock.nowMs()), end)
      stop = this.#transport.watch(end)
      if (ended) stop()
    })
  }

  /** Receives all waiting datagrams; the deadline limits it against an endless stream of messages. */
  #drain(deadlineMs: number): void {
    while (this.#receive()) if (this.#clock.nowMs() > deadlineMs) return
  }

  /** Receives one datagram and dispatches its messages; false when none is waiting, or none can be received. */
  #receive(): boolean {
    assert(!this.#routing, 'a netlink request was made inside the handler of another reply')
    this.#routing = true
    try {
      const length = this.#transport.receive(this.#buffer)
      if (length === undefined) return false
      for (const message of readMessages(this.#view, length)) this.#route(this.#view, message)
    } catch (error) {
      this.#lose(error)
      return !(error instanceof SystemError) || PASSING_LOSSES.has(error.code)
    } finally {
      this.#routing = false
    }
    return true
  }

  #route(view: ByteView, message: Message): void {
    if (message.type === NLMSG_OVERRUN)
      this.#lose(new SystemError('recvmsg', errnoNumber('ENOBUFS'), 'ENOBUFS'))
    for (const conversation of this.#conversations) {
      if (conversation.has(message.sequence)) conversation.accept(view, message)
    }
  }

  /**
   * Informs every conversation about a datagram that was dropped, truncated or unreadable, or could not be received: it
   * may have belonged to any of them.
   */
  #lose(error: unknown): void {
    if (!isNetlinkFailure(error)) throw error
    const loss = unknownOutcome(RECEIVING, error.code, error)
    for (const conversation of this.#conversations) conversation.lose(loss)
  }
}

const RECEIVING: Words = { operation: 'receive', object: '' }
/** After these, more can be received. A transport reports EMSGSIZE for a datagram that did not fit the buffer. */
const PASSING_LOSSES: ReadonlySet<string> = new Set(['ENOBUFS', 'EMSGSIZE'])

export interface Sender {
  readonly connection: Connection
  readonly clock: Clock
}

export interface DatagramReplies extends BurstReplies {
  /** The reason why the datagram could not be sent: the kernel received nothing. */
  readonly unsent: Acknowledgement | undefined
}

/** The kernel's answers to operations that it carries out independently. */
export interface Answers<Failure> {
  /** Set when the outcome of some operations is unknown; the caller must read them back. */
  readonly unknown: Error | undefined
  readonly failures: readonly Failure[]
  readonly bytes: number
  readonly messages: number
}

/** Transient failures of sendmsg: nothing was sent, so a retry is safe. */
const PASSING: ReadonlySet<string> = new Set(['EINTR', 'EAGAIN', 'ENOBUFS', 'ENOMEM'])
const SEND_ATTEMPTS = 4

/** Sends one datagram, retries after transient failures, and collects the errors among its answers. */
export async function sendDatagram(
  { connection, clock }: Sender,
  burst: Burst,
  options: { readonly pool: boolean; readonly object: string },
): Promise<DatagramReplies> {
  for (let attempt = 1; ; attempt++) {
    try {
      const { errors, acknowledged, loss } = await connection.burst(burst, options)
      return { errors, acknowledged, loss, unsent: undefined }
    } catch (error) {
      const nothing = { errors: [], acknowledged: 0 }
      if (error instanceof OutcomeUnknownError) return { ...nothing, loss: error, unsent: undefined }
      if (!(error instanceof SystemError)) throw error
      if (!PASSING.has(error.code) || attempt === SEND_ATTEMPTS)
        return { ...nothing, loss: undefined, unsent: notSent(error) }
    }
    // 5 ms more after each attempt: memory comes back as buffers are read.
    await new Promise<void>(resolve => clock.after(5 * attempt, resolve))
  }
}

function notSent(error: SystemError): Acknowledgement {
  const errno = errnoNumber(error.code) || Math.abs(error.errno)
  return { errno, extendedAck: `nothing was sent (${error.message})`, offset: undefined }
}
