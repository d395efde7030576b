import { type ByteView, viewOf } from '../../../src/netlink/attribute.ts'
import { NLM_F_ACK } from '../../../src/netlink/constants.ts'
import { errnoNumber, NetlinkError } from '../../../src/netlink/errors.ts'
import { type Message, readMessages } from '../../../src/netlink/message.ts'
import { SystemError, type Transport } from '../../../src/netlink/transport.ts'
import { refuse } from './call.ts'
import { Refusal } from './objects.ts'
import { doneMessage, errorReply } from './replies.ts'

export interface SocketOptions {
  /** SO_SNDBUF: longest datagram to send, bytes. */
  readonly sendBytesMax?: number
  /** SO_RCVBUF: bytes of waiting datagrams, counted as the kernel counts (see datagramCost). */
  readonly receiveBytesMax?: number
  /** Longest datagram of a dump, bytes. */
  readonly dumpBytesMax?: number
  /** What the kernel tells of whoever commits through this socket. */
  readonly processName?: string
}

export interface SocketKernel {
  /** Works on a datagram while its sender waits. */
  accept(datagram: Uint8Array, from: FakeSocket): void
  forget?(socket: FakeSocket): void
}

/** One netlink socket of a kernel in memory. */
export class FakeSocket implements Transport {
  readonly portId: number
  readonly sendLimitBytes: number
  readonly processId = 4242
  readonly processName: string
  readonly groups = new Set<number>()
  readonly #kernel: SocketKernel
  readonly #receiveBytesMax: number
  readonly #dumpBytesMax: number
  readonly #queue: Uint8Array[] = []
  readonly #sending = new Set<Promise<void>>()
  #queuedBytes = 0
  #overrun = false
  #dump: Iterator<Uint8Array> | undefined
  #carried: Uint8Array | undefined
  #watcher: (() => void) | undefined
  #closed = false

  constructor(kernel: SocketKernel, portId: number, options: SocketOptions) {
    this.#kernel = kernel
    this.portId = portId
    this.processName = options.processName ?? 'fake'
    this.sendLimitBytes = options.sendBytesMax ?? 1 << 30
    this.#receiveBytesMax = options.receiveBytesMax ?? 8 << 20
    this.#dumpBytesMax = options.dumpBytesMax ?? 32 << 10
  }

  sendSync(datagram: Uint8Array): void {
    if (this.#closed) throw systemError('sendmsg', 'EBADF')
    if (datagram.length > this.sendLimitBytes) throw systemError('sendmsg', 'EMSGSIZE')
    // A copy: the kernel keeps nothing of the sender's memory.
    this.#kernel.accept(Uint8Array.from(datagram), this)
  }

  async send(datagram: Uint8Array): Promise<void> {
    if (this.#closed) throw systemError('sendmsg', 'EBADF')
    const work = (async () => {
      await new Promise(resolve => setImmediate(resolve))
      this.sendSync(datagram)
    })()
    this.#sending.add(work)
    try {
      await work
    } finally {
      this.#sending.delete(work)
    }
  }

  receive(into: Uint8Array): number | undefined {
    if (this.#closed) throw systemError('recvmsg', 'EBADF')
    if (this.#overrun) {
      this.#overrun = false
      throw systemError('recvmsg', 'ENOBUFS')
    }
    const datagram = this.#queue.shift()
    if (datagram !== undefined) this.#queuedBytes -= datagramCost(datagram)
    this.#continueDump()
    if (datagram === undefined) return undefined
    if (datagram.length > into.length) throw systemError('recvmsg', 'EMSGSIZE')
    into.set(datagram)
    return datagram.length
  }

  watch(readable: () => void): () => void {
    this.#watcher = readable
    this.#wake()
    return () => {
      if (this.#watcher === readable) this.#watcher = undefined
    }
  }

  join(group: number): void {
    this.groups.add(group)
  }

  leave(group: number): void {
    this.groups.delete(group)
  }

  async close(): Promise<void> {
    await Promise.allSettled([...this.#sending])
    this.#closed = true
    this.#watcher = undefined
    this.#kernel.forget?.(this)
  }

  /** Used by the kernel: one datagram for the reader, or none and ENOBUFS at the next read. */
  enqueue(datagram: Uint8Array): void {
    const cost = datagramCost(datagram)
    if (this.#queuedBytes + cost > this.#receiveBytesMax) this.#overrun = true
    else {
      this.#queue.push(datagram)
      this.#queuedBytes += cost
    }
    this.#wake()
  }

  /** Used by the kernel: the first datagram is made now, each other one when its predecessor is read. */
  startDump(messages: Iterable<Uint8Array>, sequence: number): void {
    if (this.#dump !== undefined) refuse('EBUSY')
    this.#dump = ended(messages, doneMessage(sequence, this.portId))
    this.#continueDump()
  }

  #continueDump(): void {
    if (this.#dump === undefined || this.#queue.length > 0) return
    const parts: Uint8Array[] = this.#carried === undefined ? [] : [this.#carried]
    let length = this.#carried?.length ?? 0
    this.#carried = undefined
    for (let next = this.#dump.next(); ; next = this.#dump.next()) {
      if (next.done === true) {
        this.#dump = undefined
        break
      }
      if (length > 0 && length + next.value.length > this.#dumpBytesMax) {
        this.#carried = next.value
        break
      }
      parts.push(next.value)
      length += next.value.length
    }
    this.enqueue(Buffer.concat(parts))
  }

  /** Level-triggered, like the event loop's polling: it calls for as long as something is waiting. */
  #wake(): void {
    setImmediate(() => {
      const isReadable = this.#queue.length > 0 || this.#overrun
      if (this.#watcher === undefined || !isReadable) return
      this.#watcher()
      this.#wake()
    })
  }
}

function* ended(messages: Iterable<Uint8Array>, done: Uint8Array): Generator<Uint8Array> {
  yield* messages
  yield done
}

function systemError(syscall: string, code: string): SystemError {
  return new SystemError(syscall, errnoNumber(code), code)
}

/** A waiting datagram takes its buffer and the kernel's book-keeping: 256 acknowledgements fill 212,992 bytes. */
const DATAGRAM_COST_MIN = 832

function datagramCost(datagram: Uint8Array): number {
  return Math.max(DATAGRAM_COST_MIN, datagram.length + 512)
}

/** A message that came through a socket. */
export interface Asked {
  readonly view: ByteView
  readonly message: Message
  readonly from: FakeSocket
}

/**
 * netlink_rcv_skb: carries out one message after the other, whatever becomes of those before, and acknowledges each that
 * `answer` has not answered itself.
 */
export function answerEach(datagram: Uint8Array, from: FakeSocket, answer: (asked: Asked) => unknown): void {
  const view = viewOf(datagram)
  for (const message of readMessages(view)) {
    const reply = (errno: number, offset?: number): void =>
      from.enqueue(errorReply(message, { errno, offset }, from.portId))
    try {
      const isAnswered = answer({ view, message, from }) === 'answered'
      if (!isAnswered && (message.flags & NLM_F_ACK) !== 0) reply(0)
    } catch (error) {
      if (error instanceof Refusal) reply(error.errno, error.offset)
      else if (error instanceof NetlinkError) reply(error.errno)
      else throw error
    }
  }
}
