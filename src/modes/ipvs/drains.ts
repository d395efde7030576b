import { destinationKey, serverKey } from '../../kernel/ipvs/key.ts'
import type { RealServer, ServerKey, VirtualAddress } from '../../kernel/ipvs/state.ts'
import type { IpvsPlan } from './plan.ts'
import type { IpvsState } from './state.ts'

/** Real servers of one virtual server that take no new connections, with the time when they go at the latest. */
type Deadlines = ReadonlyMap<string, number>

/**
 * The real servers that nobody wants any more and that keep their connections until these end, or until a deadline.
 * The kernel remembers them, by their weight of 0; after a restart their time begins anew, and is the usual one.
 */
export class Drains {
  readonly #drainMs: number
  readonly #deadlines = new Map<ServerKey, Map<string, number>>()

  constructor(drainMs: number) {
    this.#drainMs = drainMs
  }

  /** Virtual servers of which something drains. */
  get servers(): readonly ServerKey[] {
    return [...this.#deadlines.keys()]
  }

  of(server: ServerKey): Deadlines {
    return this.#deadlines.get(server) ?? NONE
  }

  /** Everything was read: what is not there is forgotten, and what is known keeps its deadline. */
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

  /** A plan was carried out. A Service may have asked for another time than the usual one. */
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

/** A real server that has gone for good. */
export interface Drained {
  readonly server: VirtualAddress
  readonly destination: RealServer
  /** Connections that ended with it; 0 unless its time had run out. */
  readonly connections: number
}
