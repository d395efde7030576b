import { createServer, type Server, type Socket } from 'node:net'
import { formatIp, formatIpPort, type Ip } from '../base/ip.ts'

interface ListenerOptions {
  readonly ip: Ip
  /** 0 lets the kernel choose. */
  readonly port: number
  readonly accept: (socket: Socket) => void
  readonly listening: () => void
  /** Nothing listens there: the address is in use, is not ours, or no descriptor is left. */
  readonly failed: (error: Error) => void
  /** A connection could not be taken; others will be. */
  readonly trouble: (error: Error) => void
}

/** Listens at one address of one family. It tries once; when to try again is for its owner to say. */
export class Listener {
  readonly #options: ListenerOptions
  readonly #sockets = new Set<Socket>()
  readonly #server: Server
  #listening = false
  #closed = false

  constructor(options: ListenerOptions) {
    this.#options = options
    this.#server = createServer({ noDelay: true }, socket => this.#take(socket))
    this.#server.on('error', error => this.#failed(error))
    this.#server.once('listening', () => {
      this.#listening = true
      if (this.#closed) this.#server.close()
      else options.listening()
    })
    const { ip, port } = options
    this.#server.listen({ host: formatIp(ip), port, ipv6Only: ip.length === 16, exclusive: true })
  }

  /** `192.0.2.1:80`, with the port that the kernel chose. */
  get address(): string {
    return formatIpPort(this.#options.ip, this.port)
  }

  get port(): number {
    const address = this.#server.address()
    return typeof address === 'object' && address !== null ? address.port : this.#options.port
  }

  /** The address is free again when this returns. Ends the connections that came from it. */
  close(): void {
    this.#closed = true
    if (this.#server.listening) this.#server.close()
    for (const socket of this.#sockets) socket.destroy()
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
    if (this.#listening) {
      this.#options.trouble(error)
      return
    }
    this.#closed = true
    this.#options.failed(error)
  }
}
