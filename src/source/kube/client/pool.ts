import type { Socket } from 'node:net'
import type { Clock } from '../../../base/clock.ts'
import { ApiError } from '../api-client.ts'
import { type Answer, cutOff } from './answer.ts'
import type { Call } from './call.ts'

/** A request as it goes out, credentials included: never to be printed. */
export interface Outgoing {
  readonly method: string
  /** The path, with the server's base path. */
  readonly path: string
  /** Names in lower case. */
  readonly headers: Readonly<Record<string, string | string[]>>
  readonly body: string | undefined
  /** Longest silence between two pieces of the response's body, milliseconds; a watch has no such limit. */
  readonly idleMs: number
  readonly longLived: boolean
  /** The limit of a watch where the connection itself notices no dead peer (HTTP/1.1), milliseconds. */
  readonly watchIdleMs: number
}

/** Tests whether a response may be silent for as long as its connection lives: a refused watch has an end. */
export function isWatch({ longLived }: Outgoing, status: number): boolean {
  return longLived && status === 200
}

/** One connection to the server, over which one or more requests go at a time. */
export interface HttpConnection {
  /** Requests that may begin now; 0 when it takes no more. */
  readonly room: number
  /** It will have no room again. */
  readonly retired: boolean
  /** Its socket is gone or going. */
  readonly closed: boolean
  /** The client certificate that it was made with. */
  readonly identity: string
  /** Needs room. The answer comes or the call fails. */
  send(outgoing: Outgoing, call: Call): Promise<Answer>
  /** Takes no new requests and closes after the last one. */
  retire(): void
  /** A request over it got no answer in time: finds out whether the peer is still there. */
  probe(): void
  /** Closes at once; requests under way have failed before, or fail as lost. Resolves when the socket is closed. */
  close(): Promise<void>
}

interface ConnectionContext {
  readonly clock: Clock
  /** The connection's room has changed, or the connection has closed. */
  readonly changed: (connection: HttpConnection) => void
}

export interface OpenConnection extends ConnectionContext {
  /** Connected, with TLS where the server has it. */
  readonly socket: Socket
  readonly authority: string
  readonly identity: string
}

/** Bounds the head of an answer. */
export const HEAD_BYTES_MAX = 64 * 1024

export function endOf(socket: Socket): Promise<void> {
  return new Promise(resolve => {
    if (socket.closed) resolve()
    else socket.once('close', () => resolve())
  })
}

/** Four watches and the requests beside them need one connection with HTTP/2, and one for each with HTTP/1.1. */
const CONNECTIONS_MAX = 16
/** Limit for name, connection, TLS and SETTINGS together. */
const DIAL_LIMIT_MS = 10_000

interface PoolOptions {
  readonly clock: Clock
  /** Makes a connection. Throws ApiError; `signal` ends the attempt. */
  readonly dial: (context: PoolContext) => Promise<HttpConnection>
}

export interface PoolContext extends ConnectionContext {
  readonly signal: AbortSignal
}

interface Waiter {
  readonly call: Call
  readonly start: (connection: HttpConnection) => void
}

/** The connections to one server. At most one dial runs at a time, and all callers share its outcome. */
export class Pool {
  readonly #options: PoolOptions
  readonly #connections = new Set<HttpConnection>()
  readonly #waiters = new Set<Waiter>()
  #dialling: AbortController | undefined
  #dialed: Promise<void> | undefined
  #closed = false

  constructor(options: PoolOptions) {
    this.#options = options
  }

  /**
   * Runs `start` over a connection that has room, as soon as there is one, unless the call is over before. Requests that
   * find none wait in line; the rate limit and the callers bound how many.
   */
  use(call: Call, start: (connection: HttpConnection) => void): void {
    const waiter = { call, start }
    this.#waiters.add(waiter)
    call.onOver(() => this.#waiters.delete(waiter))
    this.#serve()
  }

  /** Retires connections that were made with another client certificate. */
  keepOnly(identity: string): void {
    for (const connection of this.#connections)
      if (connection.identity !== identity && !connection.retired) connection.retire()
  }

  async close(): Promise<void> {
    this.#closed = true
    this.#dialling?.abort(closing())
    await this.#dialed
    await Promise.all([...this.#connections].map(connection => connection.close()))
  }

  #serve(): void {
    for (const waiter of this.#waiters) {
      const connection = this.#withRoom()
      if (connection === undefined) break
      this.#waiters.delete(waiter)
      waiter.start(connection)
    }
    if (this.#waiters.size > 0 && this.#mayDial()) this.#dialed = this.#dial()
  }

  #withRoom(): HttpConnection | undefined {
    for (const connection of this.#connections) if (connection.room > 0) return connection
    return undefined
  }

  #mayDial(): boolean {
    if (this.#closed || this.#dialling !== undefined) return false
    const open = [...this.#connections].filter(connection => !connection.retired)
    return open.length < CONNECTIONS_MAX
  }

  async #dial(): Promise<void> {
    const { clock, dial } = this.#options
    const controller = new AbortController()
    this.#dialling = controller
    const cancel = clock.after(DIAL_LIMIT_MS, () => controller.abort(tooLong()))
    try {
      const connection = await dial({
        clock,
        signal: controller.signal,
        changed: connection => this.#changed(connection),
      })
      if (connection.closed) throw cutOff()
      this.#connections.add(connection)
      if (this.#closed) await connection.close()
    } catch (error) {
      this.#failAll(error)
    } finally {
      cancel()
      this.#dialling = undefined
      this.#serve()
    }
  }

  #failAll(error: unknown): void {
    const reason =
      error instanceof ApiError
        ? error
        : new ApiError('unreachable', 'the connection could not be made', { cause: error })
    for (const { call } of [...this.#waiters]) call.fail(reason)
  }

  #changed(connection: HttpConnection): void {
    if (connection.closed) this.#connections.delete(connection)
    this.#serve()
  }
}

function tooLong(): ApiError {
  return new ApiError('unreachable', `no connection within ${DIAL_LIMIT_MS / 1000} s`)
}

export function closing(): ApiError {
  return new ApiError('aborted', 'the client was closed')
}
