import type { Clock } from '../../../src/base/clock.ts'
import type { ApiErrorKind } from '../../../src/source/kube/api-client.ts'
import type { Random } from './random.ts'

interface MemoryNetworkOptions {
  readonly clock: Clock
  readonly random: Random
  /** Probability that a piece arrives in two. */
  readonly cutChance?: number
}

/** Whoever is on the network, and hears how it ends. */
export interface Passenger {
  lose(kind: ApiErrorKind, text: string): void
  /** Nothing reaches it any more, and it does not know. */
  deafen(): void
}

/** PING after 30 s without a word, and 15 s for its answer. */
const PULSE_MS = 45_000

/**
 * The way to the API server: late, in pieces, refused, cut or dead, as the test says. What is on its way when it is cut
 * does not arrive.
 */
export class MemoryNetwork {
  readonly #options: MemoryNetworkOptions
  readonly #passengers = new Set<Passenger>()
  #state: 'up' | 'refused' | 'dead' = 'up'

  constructor(options: MemoryNetworkOptions) {
    this.#options = options
  }

  get state(): 'up' | 'refused' | 'dead' {
    return this.#state
  }

  /** Requests and responses that are on the network. */
  get busy(): number {
    return this.#passengers.size
  }

  /** Everything under way is lost. */
  cut(): void {
    for (const passenger of [...this.#passengers]) passenger.lose('lost', 'the connection was reset')
  }

  /** Nobody listens any more. */
  refuse(): void {
    this.#state = 'refused'
    this.cut()
  }

  /** Nothing arrives any more, in either direction, and nobody says so: a dead peer is noticed by its missing PINGs. */
  die(): void {
    this.#state = 'dead'
    const victims = [...this.#passengers]
    for (const passenger of victims) passenger.deafen()
    this.#options.clock.after(PULSE_MS, () => {
      for (const passenger of victims) passenger.lose('silent', 'a PING was not answered')
    })
  }

  /** New connections can be made; those that died stay dead. */
  heal(): void {
    this.#state = 'up'
  }

  board(passenger: Passenger): void {
    this.#passengers.add(passenger)
  }

  leave(passenger: Passenger): void {
    this.#passengers.delete(passenger)
  }

  /** Of each piece. */
  latencyMs(): number {
    return this.#options.random.int(1, 20)
  }

  /** A piece as it arrives: whole, or cut at any byte. */
  pieces(bytes: Uint8Array): readonly Uint8Array[] {
    const { random, cutChance = 0.2 } = this.#options
    if (bytes.length < 2 || !random.chance(cutChance)) return [bytes]
    const at = random.int(1, bytes.length - 1)
    return [bytes.subarray(0, at), bytes.subarray(at)]
  }
}
