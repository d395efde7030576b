import { createSocket, type RemoteInfo, type Socket } from 'node:dgram'
import type { Cancel } from '../../../base/clock.ts'
import { familyOf, formatIp, type Ip } from '../../../base/ip.ts'
import type { Backend } from '../../../model/frontend.ts'
import { type ForwarderContext, type Listener, reportBroken, reportLoop, reportUnreached } from './context.ts'
import { endpointText, type ListName } from './forwarder.ts'
import type { ListenerOptions } from './tcp.ts'

/** Listens on a port of `address`. Rejects with the system's error. */
export async function openUdpListener(address: Ip, options: ListenerOptions): Promise<Listener> {
  const listener = new UdpListener(address, options)
  await listener.listen()
  return listener
}

class UdpListener implements Listener {
  readonly list: ListName
  readonly #address: Ip
  readonly #options: ListenerOptions
  readonly #socket: Socket
  /** Sessions by address and port of the client. */
  readonly #sessions = new Map<string, UdpSession>()
  #isOpen = false
  #port = 0
  #isClosed = false

  constructor(address: Ip, options: ListenerOptions) {
    this.#address = address
    this.#options = options
    this.list = options.list
    this.#socket = createSocket(
      familyOf(address) === 'IPv4' ? { type: 'udp4' } : { type: 'udp6', ipv6Only: true },
    )
  }

  get port(): number {
    return this.#port
  }

  async listen(): Promise<void> {
    const socket = this.#socket
    const { context, port, listenPort } = this.#options
    await new Promise<void>((resolve, reject) => {
      const failed = (error: Error) => {
        socket.close()
        reject(error)
      }
      socket.once('error', failed)
      socket.bind({ address: formatIp(this.#address), port: listenPort, exclusive: true }, () => {
        socket.off('error', failed)
        resolve()
      })
    })
    socket.on('error', error => reportBroken(context, port, error))
    socket.on('message', (datagram, from) => this.#received(datagram, from))
    this.#port = socket.address().port
  }

  setOpen(open: boolean): void {
    this.#isOpen = open
  }

  /** Ends sessions to removed endpoints: the client gets another endpoint with its next datagram. */
  changed(): void {
    const { balancer } = this.#options.port
    for (const session of this.#sessions.values())
      if (!balancer.has(this.list, session.endpoint)) session.end()
  }

  close(): void {
    this.destroy()
  }

  isBusy(): boolean {
    return this.#sessions.size > 0
  }

  destroy(): void {
    this.#isOpen = false
    if (this.#isClosed) return
    this.#isClosed = true
    for (const session of this.#sessions.values()) session.end()
    this.#socket.close()
  }

  unref(): void {
    this.#socket.unref()
    for (const session of this.#sessions.values()) session.unref()
  }

  #received(datagram: Buffer, from: RemoteInfo): void {
    if (!this.#isOpen) return
    const key = `${from.address} ${from.port}`
    const session = this.#sessions.get(key) ?? this.#open(key, from)
    session?.send(datagram)
  }

  #open(key: string, from: RemoteInfo): UdpSession | undefined {
    const { context, port } = this.#options
    if (context.own.at('UDP', from).length > 0) {
      reportLoop(context, port)
      return undefined
    }
    if (!context.sessions.take(port.holder)) return undefined
    const client = { address: from.address, nowMs: context.clock.nowMs() }
    const backend = port.balancer.pick(this.list, client, one => !context.isCaptured(one, 'UDP'))
    if (backend === undefined) {
      context.sessions.give(port.holder)
      return undefined
    }
    const session = this.#sessionTo(backend, key, from)
    this.#sessions.set(key, session)
    return session
  }

  #sessionTo(backend: Backend, key: string, from: RemoteInfo): UdpSession {
    const { context, port } = this.#options
    const { datagramBytesQueued } = context.limits
    return new UdpSession(backend, {
      context,
      answer: datagram => {
        if (this.#isClosed || this.#socket.getSendQueueSize() > datagramBytesQueued) return
        this.#socket.send(datagram, from.port, from.address, () => undefined)
      },
      ended: error => {
        this.#sessions.delete(key)
        context.sessions.give(port.holder)
        if (error === undefined) return
        const endpoint = endpointText(backend)
        port.balancer.forget(from.address, endpoint)
        reportUnreached(context, port, { endpoint, error })
      },
    })
  }
}

interface SessionOptions {
  readonly context: ForwarderContext
  /** Sends a datagram of the endpoint to the client. */
  readonly answer: (datagram: Buffer) => void
  /** Called once; with an error when the endpoint, or the socket to it, failed. */
  readonly ended: (error: Error | undefined) => void
}

/** One active client of a UDP port: a socket to the endpoint that was chosen for it. */
class UdpSession {
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
