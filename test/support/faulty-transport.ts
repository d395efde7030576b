import type { Transport } from '../../src/netlink/transport.ts'

/** What goes wrong on a socket; a test changes it while the socket is in use. */
export interface TransportFaults {
  /** Sees each datagram before the kernel does, may send another in its place, and may throw what send would throw. */
  onSend?: ((datagram: Uint8Array) => Uint8Array) | undefined
  /** Sees each datagram before the reader does; undefined loses it. May throw what recvmsg would throw. */
  onReceive?: ((datagram: Uint8Array) => Uint8Array | undefined) | undefined
  /** What a send on the thread pool waits for before the kernel begins. */
  beforePoolSend?: (() => Promise<void>) | undefined
  /** As Transport says it. */
  sendLimitBytes?: number
}

/** A socket with faults of its own, in front of the kernel or of one in memory. */
export class FaultyTransport implements Transport {
  readonly faults: TransportFaults
  readonly #inner: Transport
  readonly #sending = new Set<Promise<void>>()

  constructor(inner: Transport, faults: TransportFaults = {}) {
    this.#inner = inner
    this.faults = faults
  }

  get portId(): number {
    return this.#inner.portId
  }

  get sendLimitBytes(): number {
    return this.faults.sendLimitBytes ?? this.#inner.sendLimitBytes
  }

  sendSync(datagram: Uint8Array): void {
    this.#inner.sendSync(this.faults.onSend?.(datagram) ?? datagram)
  }

  async send(datagram: Uint8Array): Promise<void> {
    const sending = (async () => {
      await this.faults.beforePoolSend?.()
      await this.#inner.send(this.faults.onSend?.(datagram) ?? datagram)
    })()
    const settled = sending.catch(() => undefined)
    this.#sending.add(settled)
    try {
      await sending
    } finally {
      this.#sending.delete(settled)
    }
  }

  receive(into: Uint8Array): number | undefined {
    for (;;) {
      const length = this.#inner.receive(into)
      if (length === undefined || this.faults.onReceive === undefined) return length
      const seen = this.faults.onReceive(into.slice(0, length))
      if (seen === undefined) continue
      into.set(seen)
      return seen.length
    }
  }

  watch(readable: () => void): () => void {
    return this.#inner.watch(readable)
  }

  join(group: number): void {
    this.#inner.join(group)
  }

  leave(group: number): void {
    this.#inner.leave(group)
  }

  async close(): Promise<void> {
    await Promise.all(this.#sending)
    await this.#inner.close()
  }
}

/** One message of a datagram: where it lies, header included, and what its header says. */
interface RawMessage {
  readonly start: number
  readonly end: number
  readonly type: number
  readonly flags: number
  readonly sequence: number
}

export function messagesIn(datagram: Uint8Array): readonly RawMessage[] {
  const bytes = Buffer.from(datagram.buffer, datagram.byteOffset, datagram.byteLength)
  const found: RawMessage[] = []
  for (let start = 0; start + 16 <= bytes.length; ) {
    const length = bytes.readUInt32LE(start)
    if (length < 16) break
    const end = start + length
    const [type, flags] = [bytes.readUInt16LE(start + 4), bytes.readUInt16LE(start + 6)]
    found.push({ start, end, type, flags, sequence: bytes.readUInt32LE(start + 8) })
    start += (length + 3) & ~3
  }
  return found
}

const NFNL_MSG_BATCH_BEGIN = 0x10

export function isBatch(datagram: Uint8Array): boolean {
  return messagesIn(datagram.subarray(0, 20))[0]?.type === NFNL_MSG_BATCH_BEGIN
}
