import type { Cancel, Clock } from '../../../base/clock.ts'
import { assert } from '../../../base/errors.ts'
import { ApiError } from '../api-client.ts'
import { type Answer, type Call, cutOff } from './call.ts'

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
  readonly protocol: 'h2' | 'http/1.1'
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

export interface ConnectionContext {
  readonly clock: Clock
  readonly identity: string
  /** Its room has changed, or it has closed. */
  readonly changed: (connection: HttpConnection) => void
}

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

interface RateLimitOptions {
  /** Requests a second on average; 0 or less for no limit. */
  readonly qps: number
  /** Requests that may go at once after a quiet time; at least 1. */
  readonly burst: number
  readonly clock: Clock
}

interface Leaver {
  onFail(run: () => void): Cancel
}

/** The daemon has a handful of requests under way; more in the queue than this is a loop that has run away. */
const WAITING_MAX = 1000

/**
 * A token bucket (client-go's flowcontrol): full at first, one request takes one token, watches included. A caller that finds
 * it empty waits in line.
 */
export class RateLimit {
  readonly #qps: number
  readonly #burst: number
  readonly #clock: Clock
  readonly #waiting = new Set<() => void>()
  #tokens: number
  #filledMs: number
  #cancelTimer: Cancel | undefined

  constructor({ qps, burst, clock }: RateLimitOptions) {
    this.#qps = qps
    this.#burst = Math.max(1, burst)
    this.#clock = clock
    this.#tokens = this.#burst
    this.#filledMs = clock.nowMs()
  }

  /** Resolves when it is the caller's turn, or as soon as the caller has failed. */
  async turn(leaver: Leaver): Promise<void> {
    if (this.#qps <= 0) return
    assert(this.#waiting.size < WAITING_MAX, `more than ${WAITING_MAX} requests wait for their turn`)
    await new Promise<void>(resolve => {
      const go = (): void => {
        leave()
        resolve()
      }
      this.#waiting.add(go)
      const leave = leaver.onFail(() => {
        this.#waiting.delete(go)
        this.#serve()
        resolve()
      })
      this.#serve()
    })
  }

  #serve(): void {
    const nowMs = this.#clock.nowMs()
    this.#tokens = Math.min(this.#burst, this.#tokens + ((nowMs - this.#filledMs) * this.#qps) / 1000)
    this.#filledMs = nowMs
    for (const go of this.#waiting) {
      if (this.#tokens < 1) break
      this.#tokens--
      this.#waiting.delete(go)
      go()
    }
    if (this.#waiting.size === 0) this.#stopTimer()
    else
      this.#cancelTimer ??= this.#clock.after(Math.ceil(((1 - this.#tokens) * 1000) / this.#qps), () => {
        this.#cancelTimer = undefined
        this.#serve()
      })
  }

  #stopTimer(): void {
    this.#cancelTimer?.()
    this.#cancelTimer = undefined
  }
}
