import { type ByteView, viewOf } from './attribute.ts'
import { NetlinkError } from './errors.ts'
import { type Message, readMessages } from './message.ts'
import { SystemError, type Transport } from './transport.ts'

interface ReceiveOptions {
  /** A dedicated socket: what the kernel sends unasked would fill the queue of any other. */
  readonly transport: Transport
  /** The longest datagram. */
  readonly datagramBytes: number
  /** Takes one message, whose bytes are valid until it returns. */
  readonly take: (view: ByteView, message: Message) => void
  /** Called when the kernel dropped messages because they were not read in time, or when one is unreadable. */
  readonly lost: (error: Error) => void
}

/** Datagrams of the greatest length that one call of the addon may read; usual ones are much shorter. */
const DATAGRAMS_A_CALL = 4

/**
 * Makes a function that reads what the kernel sends unasked, and gives how many messages it took: fewer than
 * `messagesMax` when nothing more is waiting. Other errors than those of the socket and of messages are thrown.
 */
export function messageReceiver({ transport, datagramBytes, take, lost }: ReceiveOptions) {
  const buffer = new Uint8Array(DATAGRAMS_A_CALL * datagramBytes)
  const view = viewOf(buffer)
  /** Undefined for a failure, which is reported. */
  const attempt = <T>(work: () => T): T | undefined => {
    try {
      return work()
    } catch (error) {
      if (!(error instanceof SystemError) && !(error instanceof NetlinkError)) throw error
      lost(error)
      return undefined
    }
  }
  return (messagesMax: number): number => {
    let [count, isMore] = [0, true]
    const read = () => {
      const length = transport.receive(buffer, datagramBytes)
      isMore = length !== undefined
      return readMessages(view, length ?? 0)
    }
    while (count < messagesMax) {
      const messages = attempt(read)
      if (!isMore) break
      // One that is unreadable loses no other. Errors without end must not keep the process busy.
      for (const message of messages ?? []) attempt(() => take(view, message))
      count += Math.max(1, messages?.length ?? 1)
    }
    return count
  }
}
