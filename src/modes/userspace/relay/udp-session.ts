import { createSocket, type Socket } from 'node:dgram'
import type { Cancel } from '../../../base/clock.ts'
import { familyOf, formatIp } from '../../../base/ip.ts'
import type { Backend } from '../../../model/frontend.ts'
import { endpointText } from './balancer.ts'
import type { RelayContext } from './context.ts'

interface SessionOptions {
  readonly context: RelayContext
  /** Sends a datagram of the endpoint to the client. */
  readonly answer: (datagram: Buffer) => void
  /** Called once; with an error when the endpoint, or the socket to it, failed. */
  readonly ended: (error: Error | undefined) => void
}

/** One active client of a UDP port: a socket to the endpoint that was chosen for it. */
export class UdpSession {
  /** endpointText */
  readonly endpoint: string
  readonly #options: SessionOptions
  readonly #socket: Socket
  /** Undefined once the socket is connected. */
  #waiting: Buffer[] | undefined = []
  #cancel: Cancel
  #lastMs: number
  #disown: (() => void) | undefined
  #isEnded = false

  constructor(backend: Backend, options: SessionOptions) {
    this.endpoint = endpointText(backend)
    this.#options = options
    const { clock, limits } = options.context
    this.#lastMs = clock.nowMs()
    this.#cancel = clock.after(limits.udpIdleMs, () => this.#look())
    this.#socket = createSocket(familyOf(backend.ip) === 'IPv4' ? 'udp4' : 'udp6')
    this.#socket.on('error', error => this.end(error))
    this.#socket.on('message', datagram => this.#answer(datagram))
    this.#socket.connect(backend.port, formatIp(backend.ip), () => this.#connected())
  }

  send(datagram: Buffer): void {
    const { limits, clock } = this.#options.context
    this.#lastMs = clock.nowMs()
    if (this.#waiting === undefined) this.#forward(datagram)
    else if (this.#waiting.length < limits.datagramsWaiting) this.#waiting.push(datagram)
  }

  end(error?: Error): void {
    if (this.#isEnded) return
    this.#isEnded = true
    this.#cancel()
    this.#disown?.()
    this.#socket.close()
    this.#options.ended(error)
  }

  unref(): void {
    this.#socket.unref()
  }

  #connected(): void {
    if (this.#isEnded) return
    const { address, port } = this.#socket.address()
    // This must precede the first datagram: a client with this address is our own socket.
    this.#disown = this.#options.context.own.add('UDP', { address, port }, () => this.end())
    const waiting = this.#waiting ?? []
    this.#waiting = undefined
    for (const datagram of waiting) this.#forward(datagram)
  }

  #forward(datagram: Buffer): void {
    if (this.#isEnded || this.#socket.getSendQueueSize() > this.#options.context.limits.datagramBytesQueued)
      return
    this.#socket.send(datagram, error => {
      if (error !== null) this.end(error)
    })
  }

  #answer(datagram: Buffer): void {
    this.#lastMs = this.#options.context.clock.nowMs()
    this.#options.answer(datagram)
  }

  #look(): void {
    const { clock, limits } = this.#options.context
    const leftMs = this.#lastMs + limits.udpIdleMs - clock.nowMs()
    if (leftMs <= 0) this.end()
    else this.#cancel = clock.after(leftMs, () => this.#look())
  }
}
