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

/**
 * Makes a function that reads what the kernel sends unasked. It reads at most so many datagrams, and gives how many;
 * the socket stays readable if more are waiting. Other errors than those of the socket and of messages are thrown.
 */
export function messageReceiver({ transport, datagramBytes, take, lost }: ReceiveOptions) {
  const buffer = new Uint8Array(datagramBytes)
  const view = viewOf(buffer)
  return (datagramsMax: number): number => {
    for (let count = 0; count < datagramsMax; count++) {
      try {
        const length = transport.receive(buffer)
        if (length === undefined) return count
        for (const message of readMessages(view, length)) take(view, message)
      } catch (error) {
        if (!(error instanceof SystemError) && !(error instanceof NetlinkError)) throw error
        lost(error)
      }
    }
    return datagramsMax
  }
}
