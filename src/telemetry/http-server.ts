import type { Clock } from '../base/clock.ts'
import { type Crowd, type OverShare, sharesOf } from '../base/connection-gate.ts'
import { formatIpPort, type Ip, isUnspecified, parseIp } from '../base/ip.ts'
import { Pacer } from '../base/pacer.ts'
import { type Handler, HttpConnections } from './http-connections.ts'
import { Listener } from './listener.ts'

/** What a server reports, each once until it changes. */
export type ServerNews =
  | { readonly kind: 'listening'; readonly address: string }
  /** Nothing listens at this address; undefined says that it is not tried again. */
  | {
      readonly kind: 'failed'
      readonly address: string
      readonly error: Error
      readonly retryMs: number | undefined
    }
  /** A connection could not be taken or a request not be answered. */
  | { readonly kind: 'trouble'; readonly address: string; readonly error: Error }
  /** Connections were closed because a share is used up; said once a minute at most. */
  | { readonly kind: 'crowded'; readonly address: string; readonly crowd: Crowd }

export interface HttpServerOptions {
  /** An unspecified address listens in both families, where the node has both. */
  readonly ip: Ip
  readonly port: number
  readonly clock: Clock
  /** At a time, over both families. */
  readonly connectionsMax: number
  readonly handle: Handler
  /** Never try again after a failure to listen. */
  readonly hardFail: boolean
  readonly report: (news: ServerNews) => void
}

/** kube-proxy's. */
const RETRY_MS = 5_000

/** One handler at one address, for as long as the process lives or until close(). */
export class HttpServer {
  readonly #options: HttpServerOptions
  readonly #connections: HttpConnections
  readonly #listeners = new Map<Ip, Listener>()
  /** The failed attempts, by address, to be repeated. */
  readonly #failures = new Map<Ip, () => void>()
  readonly #retries: Pacer
  readonly #complaints = new Map<Ip, string>()
  #closed = false

  constructor(options: HttpServerOptions) {
    this.#options = options
    const { ip, port, clock } = options
    this.#retries = new Pacer({ clock, run: () => this.#retry() })
    this.#connections = new HttpConnections({
      clock,
      limits: sharesOf(options.connectionsMax),
      crowded: crowd => options.report({ kind: 'crowded', address: formatIpPort(ip, port), crowd }),
      failed: error => this.#trouble(error),
    })
    const other = otherFamilyOf(ip)
    if (other === undefined) this.#listen(ip, port)
    // Both families have the same port, also where the kernel chooses it.
    else if (port === 0) this.#listen(ip, port, chosen => this.#listen(other, chosen))
    else for (const each of [ip, other]) this.#listen(each, port)
  }

  /** The addresses where it listens now: `0.0.0.0:10256`. */
  get addresses(): readonly string[] {
    return [...this.#listeners.values()].map(({ address }) => address)
  }

  get overShare(): OverShare {
    return this.#connections.overShare
  }

  /** Frees the addresses and ends all connections. Idempotent. */
  close(): void {
    this.#closed = true
    void this.#retries.stop()
    for (const listener of this.#listeners.values()) listener.close()
    this.#listeners.clear()
    this.#connections.close()
  }

  #listen(ip: Ip, port: number, listening: (port: number) => void = () => undefined): void {
    if (this.#closed) return
    const listener: Listener = new Listener({
      ip,
      port,
      accept: socket => this.#connections.accept(socket, this.#options.handle),
      listening: () => {
        this.#listeners.set(ip, listener)
        this.#complaints.delete(ip)
        this.#options.report({ kind: 'listening', address: listener.address })
        listening(listener.port)
      },
      failed: error => this.#failed(ip, error, () => this.#listen(ip, port, listening)),
      trouble: error => this.#trouble(error),
    })
  }

  #retry(): undefined {
    const again = [...this.#failures.values()]
    this.#failures.clear()
    for (const listen of again) listen()
  }

  #failed(ip: Ip, error: Error, again: () => void): void {
    const { hardFail, port, report } = this.#options
    if (isOtherFamily(ip, this.#options.ip) && isMissingFamily(error)) return
    const retryMs = hardFail ? undefined : RETRY_MS
    if (!hardFail) {
      this.#failures.set(ip, again)
      this.#retries.wake(RETRY_MS)
    }
    if (this.#complaints.get(ip) === error.message) return
    this.#complaints.set(ip, error.message)
    report({ kind: 'failed', address: formatIpPort(ip, port), error, retryMs })
  }

  #trouble(error: Error): void {
    const { ip, port, report } = this.#options
    report({ kind: 'trouble', address: formatIpPort(ip, port), error })
  }
}

/** The unspecified address of the other family, which an unspecified address includes. */
function otherFamilyOf(ip: Ip): Ip | undefined {
  return isUnspecified(ip) ? parseIp(ip.length === 4 ? '::' : '0.0.0.0') : undefined
}

function isOtherFamily(ip: Ip, asked: Ip): boolean {
  return ip.length !== asked.length
}

/** The node has no such family at all. */
function isMissingFamily(error: Error): boolean {
  return 'code' in error && (error.code === 'EAFNOSUPPORT' || error.code === 'EADDRNOTAVAIL')
}
