import { createServer, type Server, type Socket } from 'node:net'
import { errorOf } from '../base/failure-text.ts'
import { formatIp, formatIpPort, type Ip } from '../base/ip.ts'
import { listenAtUnixSocket } from '../base/unix-socket.ts'

/** An address to listen at. */
export type Address =
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
  /** One connection failed; the listener goes on. */
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
