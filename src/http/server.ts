import type { Clock } from '../base/clock.ts'
import { type Crowd, type OverShare, sharesOf } from '../base/connection-gate.ts'
import { formatIpPort, isUnspecified, parseIp } from '../base/ip.ts'
import { Pacer } from '../base/pacer.ts'
import { type Handler, HttpConnections } from './connections.ts'
import { type Address, Listener } from './listener.ts'

/** What a server reports, each once until it changes. */
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
    const { at, connectionsMax, clock } = options
    this.#retries = new Pacer({ clock, run: () => this.#retry() })
    this.#connections = new HttpConnections({
      clock,
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
    const listener: Listener = new Listener({
      at,
      accept: socket => this.#connections.accept(socket, this.#options.handle),
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
