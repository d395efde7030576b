import type { Transport } from '../../netlink/transport.ts'

/**
 * A socket that sends requests from the thread pool while `sendSync` returns at once. The kernel begins a dump within
 * the send, and with a filter that few entries pass it walks all of its table there. Reading answers is unchanged; a
 * failed send is thrown by the next receive. Only one request may be in flight.
 */
export class PooledTransport implements Transport {
  readonly #inner: Transport
  #failure: { readonly error: unknown } | undefined
  #readable: (() => void) | undefined

  constructor(inner: Transport) {
    this.#inner = inner
  }

  get portId(): number {
    return this.#inner.portId
  }

  get sendLimitBytes(): number {
    return this.#inner.sendLimitBytes
  }

  sendSync(datagram: Uint8Array): void {
    this.#inner.send(datagram).catch((error: unknown) => {
      this.#failure = { error }
      this.#readable?.()
    })
  }

  send(datagram: Uint8Array): Promise<void> {
    return this.#inner.send(datagram)
  }

  receive(into: Uint8Array): number | undefined {
    const failure = this.#failure
    this.#failure = undefined
    if (failure !== undefined) throw failure.error
    return this.#inner.receive(into)
  }

  watch(readable: () => void): () => void {
    const stop = this.#inner.watch(readable)
    this.#readable = readable
    return () => {
      this.#readable = undefined
      stop()
    }
  }

  join(group: number): void {
    this.#inner.join(group)
  }

  leave(group: number): void {
    this.#inner.leave(group)
  }

  close(): Promise<void> {
    return this.#inner.close()
  }
}
