import { destinationKey, serverKey } from '../../kernel/ipvs/key.ts'
import type { ServerKey } from '../../kernel/ipvs/state.ts'
import type { IpvsPlan } from './plan.ts'
import type { IpvsState } from './state.ts'

/** The draining real servers of one virtual server, each with its deadline. */
type Deadlines = ReadonlyMap<string, number>

/**
 * The draining real servers: they are not wanted any more, and keep their connections until these end or
 * until a deadline. The kernel records them by their weight of 0. After a restart their time begins again,
 * with the default length.
 */
export class Drains {
  readonly #drainMs: number
  readonly #deadlines = new Map<ServerKey, Map<string, number>>()

  constructor(drainMs: number) {
    this.#drainMs = drainMs
  }

  /** The virtual servers with draining real servers. */
  get servers(): readonly ServerKey[] {
    return [...this.#deadlines.keys()]
  }

  of(server: ServerKey): Deadlines {
    return this.#deadlines.get(server) ?? NONE
  }

  /** Adopts a state that was read: forgets real servers that are gone, and keeps known deadlines. */
  adopt({ servers }: IpvsState, nowMs: number): void {
    const known = new Map(this.#deadlines)
    this.#deadlines.clear()
    for (const [key, { destinations }] of servers.entries()) {
      for (const [destination, { weight }] of destinations) {
        if (weight !== 0) continue
        this.#begin(key, destination, known.get(key)?.get(destination) ?? nowMs + this.#drainMs)
      }
    }
  }

  /** Follows a committed plan. A Service may configure another drain time than the default. */
  follow({ phases, after }: Pick<IpvsPlan, 'phases' | 'after'>, nowMs: number): void {
    for (const phase of phases) {
      if (phase.kind !== 'add-servers' && phase.kind !== 'remove-servers') continue
      for (const operation of phase.operations) {
        const key = serverKey(operation.server)
        if (operation.verb === 'delete-server') this.#deadlines.delete(key)
        if (!('destination' in operation)) continue
        const destination = destinationKey(operation.destination)
        if (operation.verb === 'set-destination' && operation.destination.weight === 0)
          this.#begin(key, destination, nowMs + (after.servers.get(key)?.drainMs ?? this.#drainMs))
        else this.end(key, destination)
      }
    }
  }

  end(server: ServerKey, destination: string): void {
    const deadlines = this.#deadlines.get(server)
    deadlines?.delete(destination)
    if (deadlines?.size === 0) this.#deadlines.delete(server)
  }

  #begin(server: ServerKey, destination: string, deadlineMs: number): void {
    const deadlines = this.#deadlines.get(server) ?? new Map<string, number>()
    deadlines.set(destination, deadlineMs)
    this.#deadlines.set(server, deadlines)
  }
}

const NONE: ReadonlyMap<string, number> = new Map()
