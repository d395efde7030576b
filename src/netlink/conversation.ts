import type { ByteView } from './bytes.ts'
import { NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR } from './constants.ts'
import { errnoNumber } from './errno.ts'
import { NetlinkError, OutcomeUnknownError } from './errors.ts'
import { type Acknowledgement, type Message, readDone, readError } from './message.ts'

/** What errors say was being done, and to what. */
export interface Words {
  readonly operation: string
  readonly object: string
}

export interface Request extends Words {
  /** The datagram, carrying the sequence number it is given. */
  build(sequence: number): Uint8Array
  /** Called for each message that answers. The view is only valid during the call. */
  onMessage(view: ByteView, message: Message): void
}

/** Messages of which each may be answered by an error of its own. */
export interface Burst {
  readonly bytes: Uint8Array
  /** Whether the sequence number is that of one of its messages. */
  has(sequence: number): boolean
  /** Called for each message that answers and is no error: what NLM_F_ECHO asked for. The view is only valid during it. */
  onMessage?(view: ByteView, message: Message): void
  /** Called for each error, for what only its subsystem puts there. The view is only valid during the call. */
  onError?(view: ByteView, message: Message): void
}

export interface BurstReplies {
  readonly errors: readonly BurstError[]
  /** Messages of which the kernel said, since NLM_F_ACK asked for it, that it carried them out. */
  readonly acknowledged: number
  /** Set when answers were lost: then nobody knows what happened. */
  readonly loss: NetlinkError | undefined
}

export interface BurstError extends Acknowledgement {
  readonly sequence: number
}

/** Somebody who waits for messages with certain sequence numbers. */
export interface Conversation {
  has(sequence: number): boolean
  accept(view: ByteView, message: Message): void
  /** Messages were lost that may have been for this conversation. */
  lose(error: NetlinkError): void
}

export function unknownOutcome(words: Words, code: string, cause?: unknown): OutcomeUnknownError {
  const { operation, object } = words
  const extendedAck = "the kernel's reply was lost"
  return new OutcomeUnknownError({ operation, object, errno: errnoNumber(code), extendedAck, cause })
}

/** One request, and its answers until the last. */
export class RequestConversation implements Conversation {
  readonly sequence: number
  readonly #request: Request
  #failure: unknown
  /** An answer, or an error, has come. */
  answered = false
  /** Nothing more will come. */
  done = false
  /** What was being listed changed meanwhile. */
  interrupted = false

  constructor(request: Request, sequence: number) {
    this.#request = request
    this.sequence = sequence
  }

  has(sequence: number): boolean {
    return sequence === this.sequence
  }

  accept(view: ByteView, message: Message): void {
    if ((message.flags & NLM_F_DUMP_INTR) !== 0) this.interrupted = true
    this.answered = true
    try {
      if (message.type === NLMSG_ERROR) this.#end(readError(view, message))
      else if (message.type === NLMSG_DONE) this.#end(readDone(view, message))
      else if (this.#failure === undefined) this.#request.onMessage(view, message)
    } catch (error) {
      this.#fail(error)
    }
  }

  lose(error: NetlinkError): void {
    this.answered = true
    this.#fail(error)
  }

  /** Throws what went wrong, if anything did. */
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

/** Many messages sent at once, and the errors among their answers. */
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
    if (message.type !== NLMSG_ERROR) {
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
