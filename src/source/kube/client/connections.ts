import { isIP, type LookupFunction, type Socket } from 'node:net'
import type { Clock } from '../../../base/clock.ts'
import { ApiError } from '../api-client.ts'
import { cutOff, type HttpConnection } from './answer.ts'
import type { Call } from './call.ts'
import type { Credentials } from './credentials.ts'
import { dial, turningLookup } from './dial.ts'
import { Http1Connection } from './http1-connection.ts'
import { type Http2Connection, openHttp2 } from './http2-connection.ts'
import type { HttpProxy, ServerAddress } from './server-address.ts'

export interface DialWatch {
  /** It is made to one of these addresses: texts of the kubeconfig or of the resolver. */
  readonly reaching: (addresses: readonly string[], port: number) => void
  /** Runs before each attempt, which waits for it; does not reject. Undefined where the outcome does not matter. */
  readonly dialling?: () => Promise<DialAttempt | undefined>
}

/** The next step of the client waits for each of these; they do not reject. */
export interface DialAttempt {
  /** The port to connect from; undefined for any. */
  readonly localPort: number | undefined
  readonly connected: (address: string, port: number) => Promise<void>
  readonly failed: () => Promise<void>
}

export interface ConnectionsOptions {
  readonly clock: Clock
  readonly credentials: Credentials
  readonly address: ServerAddress
  readonly proxy: HttpProxy | undefined
  readonly lookup: LookupFunction | undefined
  readonly dials: DialWatch | undefined
}

type Way = Omit<Parameters<typeof dial>[0], 'address' | 'proxy'>

/** What a dial has made: a connection for one request, or a session. */
interface Made {
  readonly own: Http1Connection | undefined
  readonly session: Http2Connection | undefined
  readonly remoteAddress: string
  readonly remotePort: number
}

/** Limit for name, connection, TLS and SETTINGS together. */
const DIAL_LIMIT_MS = 10_000

/** Makes connections to one server: all requests share one session of HTTP/2, or each has a connection of HTTP/1.1. */
export class Connections {
  readonly #options: ConnectionsOptions
  readonly #sockets = new Set<Socket>()
  readonly #closing = new AbortController()
  #session: Http2Connection | undefined
  /** The client certificate that the session was made with. */
  #identity = ''
  /** Dials that have failed: the next one begins at the next address of the name. */
  #failures = 0
  #dialing: Promise<Http1Connection | undefined> | undefined

  constructor(options: ConnectionsOptions) {
    this.#options = options
  }

  /**
   * Sends a request with this client certificate, unless its call is over before. At most one dial runs at a time: requests
   * that come meanwhile share a session that it makes, or its failure. Throws ApiError.
   */
  async use<T>(
    identity: string,
    call: Pick<Call, 'isOver'>,
    send: (connection: HttpConnection) => Promise<T>,
  ): Promise<T> {
    if (this.#identity !== identity) this.#session?.retire()
    for (;;) {
      // It may have been given up during a dial: what is sent may take effect. One of HTTP/1.1 notices by itself.
      if (call.isOver) throw new ApiError('aborted', 'the request was given up')
      if (this.#session?.hasRoom === true) return await send(this.#session)
      // A full session is left to its requests.
      this.#session?.retire()
      this.#session = undefined
      const isOwner = this.#dialing === undefined
      this.#dialing ??= this.#dial()
      const own = await this.#dialing
      if (isOwner && own !== undefined) return await send(own)
    }
  }

  /** Resolves when every socket is closed. */
  async close(): Promise<void> {
    this.#closing.abort(closing())
    await this.#dialing?.catch(() => undefined)
    await Promise.all([...this.#sockets].map(endOf))
  }

  /** Makes a session, or gives a connection for one request. */
  async #dial(): Promise<Http1Connection | undefined> {
    const limit = new AbortController()
    const cancel = this.#options.clock.after(DIAL_LIMIT_MS, () => limit.abort(tooLong()))
    const signal = AbortSignal.any([limit.signal, this.#closing.signal])
    try {
      return await this.#connect(signal)
    } catch (error) {
      this.#failures++
      throw error
    } finally {
      cancel()
      this.#dialing = undefined
    }
  }

  async #connect(signal: AbortSignal): Promise<Http1Connection | undefined> {
    const { address, credentials, proxy, dials } = this.#options
    signal.throwIfAborted()
    const tls = await credentials.tls()
    const lookup = this.#lookup(proxy ?? address)
    const attempt = await dials?.dialling?.()
    let made: Made
    try {
      made = await this.#make({ tls, lookup, localPort: attempt?.localPort, signal })
    } catch (error) {
      await attempt?.failed()
      throw error
    }
    await attempt?.connected(made.remoteAddress, made.remotePort)
    // It may be lost by now.
    demandRoom(made.session)
    this.#session = made.session
    this.#identity = tls.identity
    return made.own
  }

  async #make(way: Way): Promise<Made> {
    const { address, clock, proxy } = this.#options
    const { socket, isHttp2 } = await dial({ ...way, address, proxy })
    this.#sockets.add(socket)
    socket.once('close', () => this.#sockets.delete(socket))
    const { remoteAddress = '', remotePort = 0 } = socket
    const open = { socket, authority: address.authority, clock }
    // The connection comes first, because only it handles errors of the socket.
    const own = isHttp2 ? undefined : new Http1Connection(open)
    const session = isHttp2 ? await openHttp2({ ...open, signal: way.signal }) : undefined
    demandRoom(session)
    return { own, session, remoteAddress, remotePort }
  }

  /** Resolves the name of the server, or of the proxy in front of it. */
  #lookup({ host, port }: Pick<ServerAddress, 'host' | 'port'>): LookupFunction {
    const { dials, lookup } = this.#options
    const resolved = (addresses: readonly string[]): void => dials?.reaching(addresses, port)
    if (isIP(host) !== 0) resolved([host])
    return turningLookup({ lookup, turn: this.#failures, resolved })
  }
}

/** A session without room for one request would stay open, since its server answers PINGs. */
function demandRoom(session: Http2Connection | undefined): void {
  if (session === undefined || session.hasRoom) return
  session.retire()
  throw cutOff()
}

function endOf(socket: Socket): Promise<void> {
  socket.destroy()
  return new Promise(resolve => {
    if (socket.closed) resolve()
    else socket.once('close', () => resolve())
  })
}

function tooLong(): ApiError {
  return new ApiError('unreachable', `no connection within ${DIAL_LIMIT_MS / 1000} s`)
}

export function closing(): ApiError {
  return new ApiError('aborted', 'the client was closed')
}
