import { AttributeWriter, type ByteView, ByteWriter, viewOf } from '../../src/netlink/attribute.ts'
import { type Message, readMessages } from '../../src/netlink/message.ts'
import { SystemError, type Transport } from '../../src/netlink/transport.ts'

type Answer = Uint8Array | SystemError

/** A socket whose kernel is a function: what is sent is answered at once by datagrams or failures to receive. */
export class ScriptedTransport implements Transport {
  readonly portId = 77
  readonly sendLimitBytes: number = 1 << 30
  readonly sent: Uint8Array[] = []
  readonly joined = new Set<number>()
  closed = false
  readonly #answer: (datagram: Uint8Array) => readonly Answer[]
  readonly #waiting: Answer[] = []
  #readable: (() => void) | undefined

  constructor(answer: (datagram: Uint8Array) => readonly Answer[]) {
    this.#answer = answer
  }

  sendSync(datagram: Uint8Array): void {
    this.sent.push(datagram.slice())
    this.#waiting.push(...this.#answer(datagram))
  }

  async send(datagram: Uint8Array): Promise<void> {
    await Promise.resolve()
    this.sendSync(datagram)
  }

  receive(into: Uint8Array): number | undefined {
    const next = this.#waiting.shift()
    if (next instanceof SystemError) throw next
    if (next !== undefined) into.set(next)
    return next?.length
  }

  watch(readable: () => void): () => void {
    this.#readable = readable
    return () => {
      this.#readable = undefined
    }
  }

  get watched(): boolean {
    return this.#readable !== undefined
  }

  /** Something arrives without having been asked for. */
  arrive(...answers: readonly Answer[]): void {
    this.arriveUnseen(...answers)
    this.#readable?.()
  }

  /** Something arrives, and the event loop has not come to say so. */
  arriveUnseen(...answers: readonly Answer[]): void {
    this.#waiting.push(...answers)
  }

  join(group: number): void {
    this.joined.add(group)
  }

  leave(group: number): void {
    this.joined.delete(group)
  }

  async close(): Promise<void> {
    this.closed = true
  }
}

/** Bytes in host order, built by hand: the tests' own idea of netlink. */
export function u16(value: number): string {
  return Buffer.of(value & 255, (value >> 8) & 255).toString('latin1')
}

export function u32(value: number): string {
  return u16(value & 0xffff) + u16(value >>> 16)
}

export function be32(value: number): string {
  return Buffer.of((value >>> 24) & 255, (value >>> 16) & 255, (value >>> 8) & 255, value & 255).toString(
    'latin1',
  )
}

/** An attribute with its padding. */
export function attribute(type: number, ...payload: readonly string[]): string {
  const bytes = payload.join('')
  return u16(bytes.length + 4) + u16(type) + bytes + '\0'.repeat(-bytes.length & 3)
}

export function nest(type: number, ...children: readonly string[]): string {
  return attribute(type | 0x8000, ...children)
}

interface MessageFields {
  readonly type: number
  readonly flags?: number
  readonly sequence?: number
  readonly portId?: number
  readonly payload?: string
}

/** A message with its padding. */
export function message({ type, flags = 0, sequence = 0, portId = 0, payload = '' }: MessageFields): string {
  const head = u32(16 + payload.length) + u16(type) + u16(flags) + u32(sequence) + u32(portId)
  return head + payload + '\0'.repeat(-payload.length & 3)
}

export function datagram(...messages: readonly string[]): Uint8Array {
  return new Uint8Array(Buffer.from(messages.join(''), 'latin1'))
}

export function sequenceOf(sent: Uint8Array): number {
  return Buffer.from(sent).readUInt32LE(8)
}

export function typeOf(sent: Uint8Array): number {
  return Buffer.from(sent).readUInt16LE(4)
}

/** NLMSG_ERROR as the kernel sends it with NETLINK_CAP_ACK: only the header of what it is about. */
export function errorMessage(sequence: number, errno: number, attributes = ''): string {
  const flags = 0x100 | (attributes === '' ? 0 : 0x200)
  const about = u32(16) + u16(0) + u16(0) + u32(sequence) + u32(0)
  return message({ type: 2, flags, sequence, payload: u32(-errno >>> 0) + about + attributes })
}

export function doneMessage(sequence: number, errno = 0): string {
  return message({ type: 3, flags: 2, sequence, payload: u32(-errno >>> 0) })
}

/** The first message of a datagram, as decoders take it. */
export function firstMessage(bytes: Uint8Array): readonly [view: ByteView, message: Message] {
  const view = viewOf(bytes)
  const [first] = readMessages(view)
  if (first === undefined) throw new Error('no message')
  return [view, first]
}

/** What is written into a buffer that has to grow. */
export function written(run: (out: AttributeWriter) => void): Uint8Array {
  const out = new ByteWriter(1)
  run(new AttributeWriter(out))
  return out.written().slice()
}
