import type { ByteView } from './attribute.ts'
import * as netlink from './constants.ts'
import { errnoNumber, NetlinkError, OutcomeUnknownError } from './errors.ts'
import { type Acknowledgement, type Message, readDone, readError } from './message.ts'

/** The operation and the object that errors name. */
export interface Words {
  readonly operation: string
  readonly object: string
}

export interface Request extends Words {
  /** Builds the datagram with the given sequence number. */
  build(sequence: number): Uint8Array
  /** Called for each answer message. The view is only valid during the call. */
  onMessage(view: ByteView, message: Message): void
}

/** Messages that may each produce an error. */
export interface Burst {
  readonly bytes: Uint8Array
  /** Returns whether one of its messages has the sequence number. */
  has(sequence: number): boolean
  /** Called for each answer that is not an error. The view is only valid during the call. */
  onMessage?(view: ByteView, message: Message): void
  /** Called for each error, for attributes that only its subsystem writes. The view is only valid during the call. */
  onError?(view: ByteView, message: Message): void
  /** A request that is sent after the messages: its answer comes after all of theirs. It is not sent again. */
  readonly last?: Uint8Array
}

export interface BurstReplies {
  readonly errors: readonly BurstError[]
  /** Number of messages with NLM_F_ACK whose success the kernel reported. */
  readonly acknowledged: number
  /** Set when answers were lost: the outcome is then unknown. */
  readonly loss: NetlinkError | undefined
}

export interface BurstError extends Acknowledgement {
  readonly sequence: number
}

export interface Conversation {
  has(sequence: number): boolean
  accept(view: ByteView, message: Message): void
  /** Called when lost messages may have belonged to this conversation. */
  lose(error: NetlinkError): void
}

export function unknownOutcome(words: Words, code: string, cause?: unknown): OutcomeUnknownError {
  const { operation, object } = words
  const isUnreadable = cause instanceof NetlinkError
  const extendedAck = isUnreadable ? "the kernel's reply cannot be read" : "the kernel's reply was lost"
  return new OutcomeUnknownError({ operation, object, errno: errnoNumber(code), extendedAck, cause })
}

export class RequestConversation implements Conversation {
  readonly sequence: number
  readonly #request: Request
  #failure: unknown
  answered = false
  /** No more answers will arrive. */
  done = false
  /** The listed objects changed during the dump. */
  interrupted = false

  constructor(request: Request, sequence: number) {
    this.#request = request
    this.sequence = sequence
  }

  has(sequence: number): boolean {
    return sequence === this.sequence
  }

  accept(view: ByteView, message: Message): void {
    if ((message.flags & netlink.NLM_F_DUMP_INTR) !== 0) this.interrupted = true
    this.answered = true
    if (message.type === netlink.NLMSG_ERROR) this.#end(readError(view, message))
    else if (message.type === netlink.NLMSG_DONE) this.#end(readDone(view, message))
    else if (this.#failure === undefined) this.#take(view, message)
  }

  #take(view: ByteView, message: Message): void {
    try {
      this.#request.onMessage(view, message)
    } catch (error) {
      this.#fail(error)
    }
  }

  lose(error: NetlinkError): void {
    this.answered = true
    this.#fail(error)
  }

  rethrow(): void {
    if (this.#failure !== undefined) throw this.#failure
  }

  #fail(error: unknown): void {
    this.#failure ??= error
    this.done = true
  }

  #end({ errno, extendedAck, offset }: Acknowledgement): void {
    this.done = true
    if (errno === 0) return
    const { operation, object } = this.#request
    this.#fail(new NetlinkError({ operation, object, errno, extendedAck, offset, sequence: this.sequence }))
  }
}

/** Many messages of one datagram, and the errors among their answers. */
export class BurstConversation implements Conversation, BurstReplies {
  readonly errors: BurstError[] = []
  acknowledged = 0
  loss: NetlinkError | undefined
  readonly #burst: Burst

  constructor(burst: Burst) {
    this.#burst = burst
  }

  has(sequence: number): boolean {
    return this.#burst.has(sequence)
  }

  accept(view: ByteView, message: Message): void {
    if (message.type !== netlink.NLMSG_ERROR) {
      this.#burst.onMessage?.(view, message)
      return
    }
    const acknowledgement = readError(view, message)
    if (acknowledgement.errno === 0) {
      this.acknowledged++
      return
    }
    this.errors.push({ ...acknowledgement, sequence: message.sequence })
    this.#burst.onError?.(view, message)
  }

  lose(error: NetlinkError): void {
    this.loss ??= error
  }
}
