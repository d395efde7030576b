import { createConnection, createServer, type Server, type Socket } from 'node:net'
import { formatIp, type Ip } from '../../../base/ip.ts'
import type { Backend } from '../../../model/frontend.ts'
import {
  type Abort,
  type ForwarderContext,
  type ForwarderPort,
  type Listener,
  OWN_ERRORS,
  reportBroken,
  reportLoop,
  reportUnreached,
} from './context.ts'
import { endpointText, type ListName } from './forwarder.ts'

const BACKLOG = 4_096

export interface ListenerOptions {
  readonly context: ForwarderContext
  readonly port: ForwarderPort
  readonly list: ListName
  /** 0 lets the kernel choose. */
  readonly listenPort: number
}

/** Listens on a port of `address`. Rejects with the system's error. */
export async function openTcpListener(address: Ip, options: ListenerOptions): Promise<Listener> {
  const listener = new TcpListener(options)
  await listener.listen(address)
  return listener
}

class TcpListener implements Listener {
  readonly list: ListName
  readonly #options: ListenerOptions
  readonly #server: Server
  readonly #flows = new Set<TcpFlow>()
  #isOpen = false
  #port = 0

  constructor(options: ListenerOptions) {
    this.#options = options
    this.list = options.list
    this.#server = createServer(
      {
        allowHalfOpen: true,
        pauseOnConnect: true,
        noDelay: true,
        keepAlive: true,
        keepAliveInitialDelay: KEEP_ALIVE_MS,
      },
      client => this.#accept(client),
    )
  }

  get port(): number {
    return this.#port
  }

  async listen(ip: Ip): Promise<void> {
    const server = this.#server
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject)
      server.listen(
        {
          host: formatIp(ip),
          port: this.#options.listenPort,
          backlog: BACKLOG,
          ipv6Only: true,
          exclusive: true,
        },
        () => {
          server.off('error', reject)
          resolve()
        },
      )
    })
    const { context, port } = this.#options
    server.on('error', error => reportBroken(context, port, error))
    const bound = server.address()
    if (bound !== null && typeof bound === 'object') this.#port = bound.port
  }

  setOpen(open: boolean): void {
    this.#isOpen = open
  }

  changed(): void {
    // Connections to removed endpoints continue, as in every mode.
  }

  close(): void {
    this.#isOpen = false
    if (this.#server.listening) this.#server.close()
  }

  isBusy(): boolean {
    return this.#flows.size > 0
  }

  destroy(): void {
    this.close()
    for (const flow of this.#flows) flow.destroy()
  }

  unref(): void {
    this.#server.unref()
    for (const flow of this.#flows) flow.unref()
  }

  #accept(client: Socket): void {
    const { context } = this.#options
    const { remoteAddress, remotePort } = client
    const isGone = remoteAddress === undefined || remotePort === undefined
    if (isGone || !this.#isOpen) {
      refuse(client)
      return
    }
    const own = context.own.at('TCP', { address: remoteAddress, port: remotePort })
    if (own.length === 0) this.#admit(client)
    else this.#examine(client, own)
  }

  /** Closes our own connections that may be this client: they are, if the client's connection ends too. */
  #examine(client: Socket, own: readonly Abort[]): void {
    const { context, port } = this.#options
    client.on('error', () => undefined)
    // This reads one buffer, so that a reset is noticed. TcpFlow finds the data there later.
    const unread = () => undefined
    client.on('readable', unread)
    let open = own.length
    const judge = () => {
      client.off('readable', unread)
      if (!client.destroyed) {
        this.#admit(client)
        return
      }
      reportLoop(context, port)
    }
    for (const abort of own)
      abort(() => {
        if (--open === 0) void context.clock.breathe().then(context.clock.breathe).then(judge)
      })
  }

  #admit(client: Socket): void {
    const { context, port } = this.#options
    if (!context.connections.take(port.holder)) {
      refuse(client)
      return
    }
    const ended = (flow: TcpFlow) => {
      this.#flows.delete(flow)
      context.connections.give(port.holder)
    }
    this.#flows.add(new TcpFlow(client, { ...this.#options, ended }))
  }
}

function refuse(client: Socket): void {
  client.on('error', () => undefined)
  client.resetAndDestroy()
}

const KEEP_ALIVE_MS = 60_000

interface FlowOptions {
  readonly context: ForwarderContext
  readonly port: ForwarderPort
  readonly list: ListName
  readonly ended: (flow: TcpFlow) => void
}

/**
 * Forwards one connection of a client to a connection to an endpoint. It reads nothing from the client before
 * an endpoint has accepted. It reads each side only as fast as the other side accepts data. The end of a
 * stream and a reset are passed on as such.
 */
class TcpFlow {
  readonly #options: FlowOptions
  readonly #client: Socket
  readonly #address: string
  readonly #tried = new Set<string>()
  /** The tried endpoints that did not answer in time. They may answer within a longer timeout. */
  readonly #silent = new Set<string>()
  #attempts = 0
  #upstream: Socket | undefined
  #isRef = true
  /** The number of open sockets. */
  #open = 1

  constructor(client: Socket, options: FlowOptions) {
    this.#client = client
    this.#options = options
    this.#address = client.remoteAddress ?? ''
    client.on('error', () => this.#upstream?.resetAndDestroy())
    client.once('close', () => this.#closed())
    this.#dial()
  }

  destroy(): void {
    this.#client.resetAndDestroy()
    this.#upstream?.resetAndDestroy()
  }

  unref(): void {
    this.#isRef = false
    this.#client.unref()
    this.#upstream?.unref()
  }

  #dial(): void {
    const { context, port, list } = this.#options
    const { connectTimeoutsMs } = context.limits
    const timeoutMs = connectTimeoutsMs[this.#attempts++]
    const client = { address: this.#address, nowMs: context.clock.nowMs() }
    const next = () => port.balancer.pick(list, client, one => this.#isUsable(one))
    const backend = timeoutMs === undefined ? undefined : (next() ?? (this.#forgive() ? next() : undefined))
    if (timeoutMs === undefined || backend === undefined) this.#client.resetAndDestroy()
    else this.#connect(backend, timeoutMs)
  }

  /** Makes the silent endpoints usable again, because no other endpoint is left. */
  #forgive(): boolean {
    for (const endpoint of this.#silent) this.#tried.delete(endpoint)
    const isAny = this.#silent.size > 0
    this.#silent.clear()
    return isAny
  }

  #isUsable(backend: Backend): boolean {
    return !this.#tried.has(endpointText(backend)) && !this.#options.context.isCaptured(backend, 'TCP')
  }

  #connect(backend: Backend, timeoutMs: number): void {
    const { clock, own } = this.#options.context
    const endpoint = endpointText(backend)
    this.#tried.add(endpoint)
    const upstream = createConnection({
      host: formatIp(backend.ip),
      port: backend.port,
      allowHalfOpen: true,
      noDelay: true,
      keepAlive: true,
      keepAliveInitialDelay: KEEP_ALIVE_MS,
    })
    if (!this.#isRef) upstream.unref()
    this.#upstream = upstream
    this.#open++
    const cancel = clock.after(timeoutMs, () => {
      this.#silent.add(endpoint)
      upstream.destroy(new Error(`no answer in ${timeoutMs} ms`))
    })
    let isOver = false
    const failed = (error: NodeJS.ErrnoException) => {
      cancel()
      if (isOver) return
      isOver = true
      this.#failed(endpoint, error)
    }
    let disown: (() => void) | undefined
    const announce = () => {
      const { localAddress: address, localPort: port } = upstream
      if (address === undefined || port === undefined || disown !== undefined) return
      disown = own.add('TCP', { address, port }, closed => {
        this.#silent.add(endpoint)
        upstream.once('close', closed).resetAndDestroy()
      })
    }
    // The socket connects in the next tick. Every listener receives the connection later than that.
    process.nextTick(announce)
    upstream.once('error', failed)
    upstream.once('connect', () => {
      cancel()
      announce()
      // By then a listener of this process has received the connection, and would have closed it through
      // `own`.
      void clock
        .breathe()
        .then(clock.breathe)
        .then(() => {
          disown?.()
          if (upstream.destroyed) return
          isOver = true
          upstream.off('error', failed)
          this.#forwarder(upstream)
        })
    })
    upstream.once('close', () => {
      disown?.()
      failed(new Error('given up'))
      this.#closed()
    })
  }

  #failed(endpoint: string, error: NodeJS.ErrnoException): void {
    const { context, port } = this.#options
    if (this.#client.destroyed) return
    port.balancer.forget(this.#address, endpoint)
    reportUnreached(context, port, { endpoint, error })
    if (OWN_ERRORS.has(error.code ?? '')) this.#client.resetAndDestroy()
    else this.#dial()
  }

  #forwarder(upstream: Socket): void {
    const client = this.#client
    upstream.on('error', () => client.resetAndDestroy())
    if (client.destroyed) {
      upstream.resetAndDestroy()
      return
    }
    client.pipe(upstream)
    upstream.pipe(client)
  }

  /** Ends the flow when all sockets are closed. The client's is open as long as another endpoint may be tried. */
  #closed(): void {
    if (--this.#open === 0) this.#options.ended(this)
  }
}
