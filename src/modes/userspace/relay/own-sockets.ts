/** Gives a connection of ours up; calls back once it is closed. */
export type Abort = (closed: () => void) => void

/**
 * Addresses of this process' own sockets towards endpoints. A client that has one of them may be ourselves, redirected
 * back: relaying it again would never end. For UDP it is, since no two sockets share an address. For TCP it may be another
 * process of this node, to whom the kernel gave the same port for another destination: giving our own connection up
 * shows whether the client's ends with it.
 */
export class OwnSockets {
  readonly #sockets = new Map<string, Set<Abort>>()
  #met = 0

  /** How often one came back. */
  get met(): number {
    return this.#met
  }

  get size(): number {
    return this.#sockets.size
  }

  /** Until the result is called. */
  add(protocol: 'TCP' | 'UDP', place: Place, abort: Abort): () => void {
    const key = keyOf(protocol, place)
    const sockets = this.#sockets.get(key) ?? new Set()
    this.#sockets.set(key, sockets.add(abort))
    return () => {
      sockets.delete(abort)
      if (sockets.size === 0 && this.#sockets.get(key) === sockets) this.#sockets.delete(key)
    }
  }

  /** Those that a client may be the other end of. */
  at(protocol: 'TCP' | 'UDP', place: Place): readonly Abort[] {
    return [...(this.#sockets.get(keyOf(protocol, place)) ?? [])]
  }

  /** One did come back. */
  meet(): void {
    this.#met++
  }
}

interface Place {
  readonly address: string
  readonly port: number
}

function keyOf(protocol: 'TCP' | 'UDP', { address, port }: Place): string {
  return `${protocol} ${address} ${port}`
}
