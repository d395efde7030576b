import { createServer, type Server, type Socket } from 'node:net'
import { type Clock, Pacer } from '../base/clock.ts'
import { errorOf } from '../base/errors.ts'
import { formatIp, formatIpPort, type Ip, isUnspecified, parseIp } from '../base/ip.ts'
import { type Crowd, type OverShare, sharesOf } from '../base/shares.ts'
import { listenAtUnixSocket } from '../base/unix-socket.ts'
import { type Handler, HttpConnections } from './connections.ts'

/** A server reports each of these once until it changes. */
export type ServerNews =
  | { readonly kind: 'listening'; readonly address: string }
  /** The server does not listen at this address. Without `retryMs` it does not retry. */
  | {
      readonly kind: 'failed'
      readonly address: string
      readonly error: Error
      readonly retryMs: number | undefined
    }
  /** A connection or a request failed. */
  | { readonly kind: 'trouble'; readonly address: string; readonly error: Error }
  /** The server closed connections that exceeded a share; reported once a minute at most. */
  | { readonly kind: 'crowded'; readonly address: string; readonly crowd: Crowd }

export interface HttpServerOptions {
  /** An unspecified IP address listens in both families, if the node has both. */
  readonly at: Address
  readonly clock: Clock
  /** Maximum number of connections, over both families. */
  readonly connectionsMax: number
  readonly handle: Handler
  /** See HttpConnections. */
  readonly isLenient?: boolean
  /** Passes each accepted connection on, as it is or within TLS; absent to serve it as it is. */
  readonly enter?: ((socket: Socket, accept: (socket: Socket) => void) => void) | undefined
  /** Never retry after a failure to listen. */
  readonly hardFail: boolean
  readonly report: (news: ServerNews) => void
}

/** kube-proxy's interval. */
const RETRY_MS = 5_000

/** Listens at an address, and restarts a listener that fails, until close(). */
export class HttpServer {
  readonly #options: HttpServerOptions
  readonly #connections: HttpConnections
  /** Listeners, the attempts to repeat, and the last reported failures, by address. */
  readonly #listeners = new Map<Address, Listener>()
  readonly #failures = new Map<Address, () => void>()
  readonly #retries: Pacer
  readonly #complaints = new Map<Address, string>()
  #closed = false

  constructor(options: HttpServerOptions) {
    this.#options = options
    const { at, connectionsMax, clock, isLenient } = options
    this.#retries = new Pacer({ clock, run: () => this.#retry() })
    this.#connections = new HttpConnections({
      clock,
      isLenient,
      // All clients of a unix socket are its owner's.
      limits: 'path' in at ? { connections: connectionsMax } : sharesOf(connectionsMax),
      crowded: crowd => this.#report({ kind: 'crowded', address: textOf(at), crowd }),
      failed: error => this.#trouble(error),
    })
    const other = otherFamilyOf(at)
    if (other === undefined) this.#listen(at)
    // Both families have the same port, also where the kernel chooses it.
    else if (other.port === 0) this.#listen(at, port => this.#listen({ ...other, port }))
    else for (const each of [at, other]) this.#listen(each)
  }

  /** The addresses where it listens now: `0.0.0.0:10256`. */
  get addresses(): readonly string[] {
    return [...this.#listeners.values()]
      .filter(({ isListening }) => isListening)
      .map(({ address }) => address)
  }

  get overShare(): OverShare {
    return this.#connections.overShare
  }

  /** Ends all connections, and frees the addresses: IP addresses at once, a unix socket when the result resolves. */
  async close(): Promise<void> {
    this.#closed = true
    void this.#retries.stop()
    const closing = [...this.#listeners.values()].map(listener => listener.close())
    this.#listeners.clear()
    this.#connections.close()
    await Promise.all(closing)
  }

  #listen(at: Address, listening: (port: number) => void = () => undefined): void {
    if (this.#closed) return
    const { handle, enter = (socket, accept) => accept(socket) } = this.#options
    const listener: Listener = new Listener({
      at,
      accept: socket => enter(socket, entered => this.#connections.accept(entered, handle)),
      listening: () => {
        this.#complaints.delete(at)
        this.#report({ kind: 'listening', address: listener.address })
        listening(listener.port)
      },
      failed: error => this.#failed(at, error, () => this.#listen(at, listening)),
      trouble: error => this.#trouble(error),
    })
    this.#listeners.set(at, listener)
  }

  #retry(): undefined {
    const again = [...this.#failures.values()]
    this.#failures.clear()
    for (const listen of again) listen()
  }

  #failed(at: Address, error: Error, again: () => void): void {
    this.#listeners.delete(at)
    const { hardFail } = this.#options
    if (at !== this.#options.at && isMissingFamily(error)) return
    const retryMs = hardFail ? undefined : RETRY_MS
    if (!hardFail) {
      this.#failures.set(at, again)
      this.#retries.wake(RETRY_MS)
    }
    if (this.#complaints.get(at) === error.message) return
    this.#complaints.set(at, error.message)
    this.#report({ kind: 'failed', address: textOf(at), error, retryMs })
  }

  #trouble(error: Error): void {
    this.#report({ kind: 'trouble', address: textOf(this.#options.at), error })
  }

  #report(news: ServerNews): void {
    if (!this.#closed) this.#options.report(news)
  }
}

function textOf(at: Address): string {
  return 'path' in at ? at.path : formatIpPort(at.ip, at.port)
}

/** Gives the unspecified address of the other family; undefined unless `at` is unspecified, too. */
function otherFamilyOf(at: Address): Exclude<Address, { readonly path: string }> | undefined {
  if ('path' in at || !isUnspecified(at.ip)) return undefined
  const ip = parseIp(at.ip.length === 4 ? '::' : '0.0.0.0')
  return ip === undefined ? undefined : { ip, port: at.port }
}

/** Tests whether the node has no addresses of the family. */
function isMissingFamily(error: Error): boolean {
  return 'code' in error && (error.code === 'EAFNOSUPPORT' || error.code === 'EADDRNOTAVAIL')
}

type Address =
  /** Port 0 lets the kernel choose. */
  | { readonly ip: Ip; readonly port: number }
  /** A unix socket. Only its owner can connect to it. */
  | { readonly path: string }

interface ListenerOptions {
  readonly at: Address
  readonly accept: (socket: Socket) => void
  readonly listening: () => void
  /** The listener cannot listen: the address is in use or not of this machine, or no descriptor is left. */
  readonly failed: (error: Error) => void
  /** One connection failed; the listener continues. */
  readonly trouble: (error: Error) => void
}

/** Listens at one address of one family, or at a unix socket. It tries once; its owner retries. */
export class Listener {
  readonly #options: ListenerOptions
  readonly #sockets = new Set<Socket>()
  readonly #server: Server
  #removeFile: (() => Promise<void>) | undefined
  #isListening = false
  #closed = false

  constructor(options: ListenerOptions) {
    this.#options = options
    this.#server = createServer({ noDelay: true }, socket => this.#take(socket))
    this.#server.on('error', error => this.#failed(error))
    const { at } = options
    if ('path' in at) void this.#listenAtPath(at.path)
    else {
      this.#server.once('listening', () => this.#listening())
      const { ip, port } = at
      this.#server.listen({ host: formatIp(ip), port, ipv6Only: ip.length === 16, exclusive: true })
    }
  }

  get isListening(): boolean {
    return this.#isListening && !this.#closed
  }

  /** `192.0.2.1:80`, with the port that the kernel chose; or the path. */
  get address(): string {
    const { at } = this.#options
    return 'path' in at ? at.path : formatIpPort(at.ip, this.port)
  }

  get port(): number {
    const { at } = this.#options
    const address = this.#server.address()
    if (typeof address === 'object' && address !== null) return address.port
    return 'path' in at ? 0 : at.port
  }

  /**
   * Ends the connections, and frees the address: at once, or, for a unix socket, when the result resolves. The file is
   * removed first, because no other file has its number while the socket exists.
   */
  close(): Promise<void> {
    this.#closed = true
    for (const socket of this.#sockets) socket.destroy()
    if (this.#removeFile !== undefined) return this.#removeFile().then(() => void this.#server.close())
    if (this.#server.listening) this.#server.close()
    return Promise.resolve()
  }

  async #listenAtPath(path: string): Promise<void> {
    try {
      this.#removeFile = await listenAtUnixSocket(this.#server, path)
    } catch (thrown) {
      this.#failed(errorOf(thrown))
      return
    }
    this.#listening()
  }

  #listening(): void {
    this.#isListening = true
    if (this.#closed) void this.close()
    else this.#options.listening()
  }

  #take(socket: Socket): void {
    if (this.#closed) {
      socket.destroy()
      return
    }
    this.#sockets.add(socket)
    socket.once('close', () => this.#sockets.delete(socket))
    this.#options.accept(socket)
  }

  #failed(error: Error): void {
    if (this.#closed) return
    if (this.#isListening) {
      this.#options.trouble(error)
      return
    }
    this.#closed = true
    this.#options.failed(error)
  }
}
