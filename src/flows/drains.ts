import type { Octets } from '../base/octets.ts'
import type { ServiceKey } from '../model/service.ts'
import type { Draining } from './stale.ts'

interface Drain {
  readonly service: ServiceKey
  readonly dueMs: number
  /** Number of the pass that saw a connection of it last. */
  seenIn: number
}

/** Beyond this many pairs of place and endpoint the others wait until there is room. */
const DRAINS_MAX = 10_000

/** Since when connections are seen whose endpoint is gone. A process that starts anew counts from its own start. */
export class Drains {
  readonly #drains = new Map<Octets, Drain>()
  #pass = 0

  get size(): number {
    return this.#drains.size
  }

  /** Begins a pass; what it does not see until finish() has ended by itself. */
  begin(): void {
    this.#pass++
  }

  /** Whether the connection's time is over. */
  isDue({ between, service, drainMs }: Draining, nowMs: number): boolean {
    const known = this.#drains.get(between)
    if (known === undefined) {
      if (drainMs === 0) return true
      if (this.#drains.size < DRAINS_MAX)
        this.#drains.set(between, { service, dueMs: nowMs + drainMs, seenIn: this.#pass })
      return false
    }
    known.seenIn = this.#pass
    return nowMs >= known.dueMs
  }

  /** Ends a pass that has seen all connections of these Services. */
  finish(services: ReadonlySet<ServiceKey>, nowMs: number): void {
    for (const [between, { service, dueMs, seenIn }] of this.#drains)
      if (services.has(service) && (seenIn !== this.#pass || dueMs <= nowMs)) this.#drains.delete(between)
  }

  get nextDueMs(): number | undefined {
    let next: number | undefined
    for (const { dueMs } of this.#drains.values()) if (next === undefined || dueMs < next) next = dueMs
    return next
  }

  servicesDue(nowMs: number): readonly ServiceKey[] {
    const services = new Set<ServiceKey>()
    for (const { service, dueMs } of this.#drains.values()) if (dueMs <= nowMs) services.add(service)
    return [...services]
  }
}
