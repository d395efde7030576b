import { connect, createServer, type Server, type Socket } from 'node:net'
import { setImmediate as turn } from 'node:timers/promises'

/** One TCP connection to the server, below whatever is spoken on it. */
export interface Connection {
  /** RST instead of FIN. */
  reset(): void
  /** Neither bytes nor an end go through any more, in either direction. */
  stall(): void
}

interface FrontOptions {
  readonly host: string
  /** 0 for any. */
  readonly port: number
  /** Takes connections over in this process. */
  readonly accept: (socket: Socket) => void
  /** Where to relay connections to instead, so that they can be stalled. */
  readonly relayTo: number | undefined
}

/** Of the event loop, within which a socket that is destroyed says that it is closed. */
const TURNS_MAX = 10

/** The port of a server: can stop listening, and cut all connections. */
export class Front {
  readonly #options: FrontOptions
  readonly #server: Server
  readonly #sockets = new Set<Socket>()
  /** By the port of the peer as the server behind this sees it. */
  readonly #connections = new Map<number, Connection>()
  readonly #all = new Set<Connection>()
  accepted = 0
  #port: number

  constructor(options: FrontOptions) {
    this.#options = options
    this.#port = options.port
    this.#server = createServer({ noDelay: true }, socket => this.#take(socket))
  }

  get port(): number {
    return this.#port
  }

  get connectionCount(): number {
    return this.#sockets.size
  }

  /** On the same port as before, if there was one. */
  async listen(): Promise<void> {
    if (this.#server.listening) return
    await new Promise<void>((resolve, reject) => {
      this.#server.once('error', reject)
      this.#server.listen(this.#port, this.#options.host, () => {
        this.#server.removeListener('error', reject)
        resolve()
      })
    })
    const address = this.#server.address()
    if (typeof address === 'object' && address !== null) this.#port = address.port
  }

  /** Connections from now on are refused; those there are get cut. */
  async refuse(): Promise<void> {
    if (!this.#server.listening) return
    this.#server.close()
    this.cut()
    // A socket that is cut while TLS takes its handle over may never say that it is closed; others do within a turn or two.
    for (let turns = 0; this.#sockets.size > 0 && turns < TURNS_MAX; turns++) await turn()
  }

  /** RST on every connection. */
  cut(): void {
    for (const connection of [...this.#all]) connection.reset()
    for (const socket of [...this.#sockets]) socket.destroy()
  }

  connectionOf(peerPort: number | undefined): Connection | undefined {
    return peerPort === undefined ? undefined : this.#connections.get(peerPort)
  }

  #take(socket: Socket): void {
    this.accepted++
    this.#sockets.add(socket)
    socket.once('close', () => this.#sockets.delete(socket))
    // The other side's resets are its affair.
    socket.on('error', () => undefined)
    const { relayTo, accept } = this.#options
    if (relayTo !== undefined) this.#relay(socket, relayTo)
    else {
      this.#register(socket, socket.remotePort, {
        reset: () => reset(socket),
        stall: () => {
          throw new Error('only a server with `relay` can stall')
        },
      })
      accept(socket)
    }
  }

  #relay(outer: Socket, port: number): void {
    const inner = connect({ port, host: '127.0.0.1', noDelay: true })
    let stalled = false
    inner.on('error', () => undefined)
    inner.once('close', () => {
      if (!stalled) outer.destroy()
    })
    outer.once('close', () => inner.destroy())
    inner.once('connect', () => {
      this.#register(outer, inner.localPort, {
        reset: () => {
          reset(outer)
          inner.destroy()
        },
        stall: () => {
          stalled = true
          outer.unpipe()
          inner.unpipe()
          outer.pause()
          inner.pause()
        },
      })
      outer.pipe(inner)
      inner.pipe(outer)
    })
  }

  #register(socket: Socket, peerPort: number | undefined, connection: Connection): void {
    this.#all.add(connection)
    if (peerPort !== undefined) this.#connections.set(peerPort, connection)
    socket.once('close', () => {
      this.#all.delete(connection)
      if (peerPort !== undefined && this.#connections.get(peerPort) === connection)
        this.#connections.delete(peerPort)
    })
  }
}

/** A socket that said its end cannot be reset: Node 20 would leave its handle open for good. */
function reset(socket: Socket): void {
  if (socket.writableEnded) socket.destroy()
  else socket.resetAndDestroy()
}
