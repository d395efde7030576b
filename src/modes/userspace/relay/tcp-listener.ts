import { createServer, type Server, type Socket } from 'node:net'
import { formatIp, type Ip } from '../../../base/ip.ts'
import type { ListName } from './balancer.ts'
import { type Listener, type RelayContext, type RelayPort, reportLoop } from './context.ts'
import type { Abort } from './own-sockets.ts'
import { KEEP_ALIVE_MS, TcpFlow } from './tcp-flow.ts'

const BACKLOG = 4_096

export interface ListenerOptions {
  readonly context: RelayContext
  readonly port: RelayPort
  readonly list: ListName
}

/** Listens on a port of `address` that the kernel chooses. Rejects with the system's error. */
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
        { host: formatIp(ip), port: 0, backlog: BACKLOG, ipv6Only: true, exclusive: true },
        () => {
          server.off('error', reject)
          resolve()
        },
      )
    })
    const { context, port } = this.#options
    server.on('error', error => context.report({ kind: 'broken', port: port.key, error }))
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
    // This reads one buffer, so that a reset is noticed. The relay finds the data there later.
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
