import { type BackoffOptions, backoffMs } from '../base/clock.ts'
import type { Family } from '../base/ip.ts'

/** Tests whether a key of the quarantine stands for a family: no key of a Service equals the name of one. */
export function isFamily(key: string): key is Family {
  return key === 'IPv4' || key === 'IPv6'
}

export interface FailedFamily {
  readonly family: Family
  readonly error: Error
}

/** A Service or a family that the kernel refused, and when it may try again. */
export interface QuarantineEntry {
  /** The Service, or the name of the family. */
  readonly service: string
  readonly error: Error
  readonly failures: number
  readonly retryAtMs: number
  /** The value that was refused: another one deserves a fresh start. */
  readonly subject: unknown
}

interface RefusedService {
  readonly service: string
  readonly subject: unknown
  readonly error: Error
}

/**
 * The Services that are left out because the kernel refused them, so that all others go in, and the families. Each is
 * retried alone, at growing distances.
 */
export class Quarantine {
  readonly #entries = new Map<string, QuarantineEntry>()
  readonly all: ReadonlyMap<string, QuarantineEntry> = this.#entries
  readonly #backoff: BackoffOptions

  constructor(backoff: BackoffOptions) {
    this.#backoff = backoff
  }

  get entries(): readonly QuarantineEntry[] {
    return [...this.#entries.values()].filter(({ service }) => !isFamily(service))
  }

  /** The family that the kernel cannot program. There is one at most, or every pass fails. */
  get failedFamily(): FailedFamily | undefined {
    for (const { service, error } of this.#entries.values())
      if (isFamily(service)) return { family: service, error }
    return undefined
  }

  without(): ReadonlySet<string> {
    return new Set(this.#entries.keys())
  }

  has(service: string): boolean {
    return this.#entries.has(service)
  }

  refuse({ service, subject, error }: RefusedService, nowMs: number): QuarantineEntry {
    const failures = (this.#entries.get(service)?.failures ?? 0) + 1
    const retryAtMs = nowMs + backoffMs(failures, this.#backoff)
    const entry = { service, error, failures, retryAtMs, subject }
    this.#entries.set(service, entry)
    return entry
  }

  release(service: string): void {
    this.#entries.delete(service)
  }

  /** Lets changed Services retry at once, and forgets deleted ones. */
  reconsider(subjectOf: (service: string) => unknown, nowMs: number): void {
    for (const [service, entry] of this.#entries) {
      const subject = subjectOf(service)
      if (subject === undefined) this.#entries.delete(service)
      else if (subject !== entry.subject)
        this.#entries.set(service, { ...entry, subject, failures: 0, retryAtMs: nowMs })
    }
  }

  due(nowMs: number): readonly string[] {
    return [...this.#entries.values()].filter(entry => entry.retryAtMs <= nowMs).map(entry => entry.service)
  }

  /** Monotonic milliseconds of the next turn. */
  nextRetryMs(): number | undefined {
    let next: number | undefined
    for (const { retryAtMs } of this.#entries.values()) next = Math.min(next ?? retryAtMs, retryAtMs)
    return next
  }
}
