import { createServer as createHttp1, type IncomingMessage, type ServerResponse } from 'node:http'
import {
  createSecureServer,
  type Http2ServerRequest,
  type Http2ServerResponse,
  type ServerHttp2Session,
} from 'node:http2'
import type { Server, Socket } from 'node:net'
import { type KubeconfigOptions, kubeconfigText } from '../kubeconfig.ts'
import { type Authority, createAuthority } from '../tls.ts'
import { serve } from './exchange.ts'
import { FaultScript } from './faults.ts'
import { Front } from './front.ts'
import { HttpPort, type LogEntry } from './http-port.ts'
import { Semantics, type SemanticsOptions } from './semantics.ts'
import type { Store } from './store.ts'

export interface ApiServerOptions extends SemanticsOptions {
  /** HTTP/1.1 without TLS when false. An authority of the test's, or one made for this server. */
  readonly tls?: boolean | Authority
  /** Certificate to show instead of one for the loopback addresses. */
  readonly certificate?: { readonly certPem: string; readonly keyPem: string }
  readonly host?: string
  readonly port?: number
  readonly maxConcurrentStreams?: number
  /** Connections go through a relay in this process, which stalling needs; on by default. */
  readonly relay?: boolean
}

type Handled = (
  request: IncomingMessage | Http2ServerRequest,
  response: ServerResponse | Http2ServerResponse,
) => void

const BODY_BYTES_MAX = 8 * 1024 * 1024

/** A Kubernetes API server with real sockets. */
export class ApiServer {
  readonly semantics: Semantics
  readonly faults = new FaultScript()
  readonly log: LogEntry[] = []
  readonly authority: Authority | undefined
  readonly #options: ApiServerOptions
  readonly #inner: Server
  readonly #front: Front
  readonly #sessions = new Set<ServerHttp2Session>()
  readonly #innerSockets = new Set<Socket>()
  readonly #exchanges = new Set<() => void>()

  static async start(options: ApiServerOptions = {}): Promise<ApiServer> {
    const { tls = true } = options
    const authority = tls === true ? createAuthority() : tls === false ? undefined : tls
    const server = new ApiServer(options, authority)
    if (options.relay !== false) await listening(server.#inner)
    await server.#front.listen()
    return server
  }

  private constructor(options: ApiServerOptions, authority: Authority | undefined) {
    this.#options = options
    this.authority = authority
    this.semantics = new Semantics(options)
    this.#inner = createInner(options, authority, (request, response) => this.#request(request, response))
    this.#inner.on('session', (session: ServerHttp2Session) => {
      this.#sessions.add(session)
      session.once('close', () => this.#sessions.delete(session))
      session.on('error', () => undefined)
    })
    this.#inner.on('connection', (socket: Socket) => {
      this.#innerSockets.add(socket)
      socket.once('close', () => this.#innerSockets.delete(socket))
    })
    const inner = this.#inner
    this.#front = new Front({
      host: options.host ?? '127.0.0.1',
      port: options.port ?? 0,
      accept: socket => this.#inner.emit('connection', socket),
      get relayTo() {
        return options.relay === false ? undefined : portOf(inner)
      },
    })
  }

  get store(): Store {
    return this.semantics.store
  }

  get port(): number {
    return this.#front.port
  }

  /** Without a slash at the end. */
  get url(): string {
    const host = this.#options.host ?? '127.0.0.1'
    const bracketed = host.includes(':') ? `[${host}]` : host
    return `${this.authority === undefined ? 'http' : 'https'}://${bracketed}:${this.port}`
  }

  get connectionCount(): number {
    return this.#front.connectionCount
  }

  /** Connections ever accepted. */
  get accepted(): number {
    return this.#front.accepted
  }

  kubeconfig(options: Omit<KubeconfigOptions, 'server'> & { readonly server?: string } = {}): string {
    const ca = this.authority === undefined ? {} : { caPem: this.authority.caPem }
    return kubeconfigText({ server: this.url, ...ca, ...options })
  }

  /** Nobody listens any more, and every connection is cut. */
  refuse(): Promise<void> {
    return this.#front.refuse()
  }

  /** Listens again, on the same port. */
  listen(): Promise<void> {
    return this.#front.listen()
  }

  /** Every connection is reset; new ones are welcome. */
  cut(): void {
    this.#front.cut()
  }

  /** Ends everything: connections, exchanges, both listeners. Idempotent. */
  async close(): Promise<void> {
    for (const cancel of [...this.#exchanges]) cancel()
    await this.#front.refuse()
    for (const session of [...this.#sessions]) session.destroy()
    for (const socket of [...this.#innerSockets]) socket.destroy()
    if (!this.#inner.listening) return
    await new Promise<void>(resolve => {
      this.#inner.close(() => resolve())
    })
  }

  #request(
    request: IncomingMessage | Http2ServerRequest,
    response: ServerResponse | Http2ServerResponse,
  ): void {
    const entry: LogEntry = {
      method: request.method ?? '',
      path: request.url ?? '/',
      query: new URL(request.url ?? '/', 'http://server').searchParams,
      headers: headersOf(request),
      code: undefined,
    }
    this.log.push(entry)
    const chunks: Buffer[] = []
    let bytes = 0
    request.on('data', (chunk: Buffer) => {
      bytes += chunk.length
      if (bytes <= BODY_BYTES_MAX) chunks.push(chunk)
    })
    request.once('error', () => undefined)
    request.once('end', () =>
      this.#answer(request, response, { entry, body: Buffer.concat(chunks).toString() }),
    )
  }

  #answer(
    request: IncomingMessage | Http2ServerRequest,
    response: ServerResponse | Http2ServerResponse,
    { entry, body }: { readonly entry: LogEntry; readonly body: string },
  ): void {
    const connection = this.#front.connectionOf(request.socket?.remotePort)
    const port = new HttpPort({ response, entry, connection })
    const cancel = serve({ semantics: this.semantics, faults: this.faults }, { ...entry, body }, port)
    this.#exchanges.add(cancel)
    response.on('error', () => undefined)
    response.once('close', () => {
      this.#exchanges.delete(cancel)
      cancel()
    })
  }
}

function createInner(options: ApiServerOptions, authority: Authority | undefined, handle: Handled): Server {
  if (authority === undefined) return createHttp1(handle)
  const { maxConcurrentStreams } = options
  const settings = maxConcurrentStreams === undefined ? {} : { settings: { maxConcurrentStreams } }
  const { certPem, keyPem } = options.certificate ?? authority.issue()
  const tls = {
    cert: certPem,
    key: keyPem,
    ca: authority.caPem,
    requestCert: true,
    rejectUnauthorized: false,
  }
  // Megabytes of answers that wait for slow readers; Node turns new streams down beyond 10 of them, a real server does not.
  const maxSessionMemory = 1_000
  return createSecureServer({ ...tls, allowHTTP1: true, maxSessionMemory, ...settings }, handle)
}

function listening(server: Server): Promise<void> {
  return new Promise((resolve, reject) => {
    server.once('error', reject)
    server.listen(0, '127.0.0.1', resolve)
  })
}

function portOf(server: Server): number | undefined {
  const address = server.address()
  return typeof address === 'object' && address !== null ? address.port : undefined
}

function headersOf({ headers }: IncomingMessage | Http2ServerRequest): Record<string, string> {
  const plain: Record<string, string> = {}
  for (const [name, value] of Object.entries(headers))
    if (value !== undefined) plain[name] = Array.isArray(value) ? value.join(', ') : value
  return plain
}
