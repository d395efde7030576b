import type { Clock } from '../../../base/clock.ts'
import { ApiError } from '../api-client.ts'
import type { Call } from './call.ts'
import type { ConnectionContext, HttpConnection } from './connection.ts'

/** One is enough unless the server allows few streams on each: four watches, and what comes beside them. */
const H2_CONNECTIONS_MAX = 8
/** Every request takes a connection of its own for as long as it lasts. */
const H1_CONNECTIONS_MAX = 16
/** Limit for name, connection, TLS and SETTINGS together. */
const DIAL_LIMIT_MS = 10_000

interface PoolOptions {
  readonly clock: Clock
  /** Makes a connection. Throws ApiError; `signal` ends the attempt. */
  readonly dial: (context: PoolContext) => Promise<HttpConnection>
}

export interface PoolContext extends Omit<ConnectionContext, 'identity'> {
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

  get size(): number {
    return this.#connections.size
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

  /** Whatever was made with another client certificate takes no new requests. */
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
    const most = open.some(({ protocol }) => protocol === 'h2') ? H2_CONNECTIONS_MAX : H1_CONNECTIONS_MAX
    return open.length < most
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

function closing(): ApiError {
  return new ApiError('aborted', 'the client was closed')
}
