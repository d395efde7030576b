import { type BackoffOptions, backoffMs } from './backoff.ts'

/** A Service that the kernel refused, and when it may try again. */
export interface QuarantineEntry {
  readonly service: string
  readonly error: Error
  readonly failures: number
  readonly retryAtMs: number
}

/**
 * The Services that are left out because the kernel refused them, so that all others go in. Each is retried alone, at
 * growing distances.
 */
export class Quarantine {
  readonly #entries = new Map<string, QuarantineEntry>()
  readonly #backoff: BackoffOptions

  constructor(backoff: BackoffOptions) {
    this.#backoff = backoff
  }

  get entries(): readonly QuarantineEntry[] {
    return [...this.#entries.values()]
  }

  /** The Services to leave out of a render. */
  without(except?: ReadonlySet<string>): ReadonlySet<string> {
    const services = new Set(this.#entries.keys())
    if (except !== undefined) for (const service of except) services.delete(service)
    return services
  }

  has(service: string): boolean {
    return this.#entries.has(service)
  }

  refuse(service: string, error: Error, nowMs: number): QuarantineEntry {
    const failures = (this.#entries.get(service)?.failures ?? 0) + 1
    const entry = { service, error, failures, retryAtMs: nowMs + backoffMs(failures, this.#backoff) }
    this.#entries.set(service, entry)
    return entry
  }

  release(service: string): void {
    this.#entries.delete(service)
  }

  /** The one Service whose turn has come, if any. */
  due(nowMs: number): string | undefined {
    let first: QuarantineEntry | undefined
    for (const entry of this.#entries.values())
      if (entry.retryAtMs <= nowMs && (first === undefined || entry.retryAtMs < first.retryAtMs))
        first = entry
    return first?.service
  }

  /** Monotonic milliseconds of the next turn. */
  nextRetryMs(): number | undefined {
    let next: number | undefined
    for (const { retryAtMs } of this.#entries.values()) next = Math.min(next ?? retryAtMs, retryAtMs)
    return next
  }
}
