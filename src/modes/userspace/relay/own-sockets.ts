/** Closes a connection of ours, and calls back once it is closed. */
export type Abort = (closed: () => void) => void

/**
 * The addresses of this process's own sockets towards endpoints. A client with one of these addresses may be
 * this process, redirected back to itself; relaying such a connection would never end. For UDP it is, because
 * no two sockets share an address. For TCP it may be another process of this node, to which the kernel gave
 * the same port for another destination. Closing our own connection then shows whether the client's
 * connection ends with it.
 */
export class OwnSockets {
  readonly #sockets = new Map<string, Set<Abort>>()
  #loops = 0

  /** The number of connections that came back. */
  get loops(): number {
    return this.#loops
  }

  get size(): number {
    return this.#sockets.size
  }

  /** Adds a socket, until the returned function is called. */
  add(protocol: 'TCP' | 'UDP', place: Place, abort: Abort): () => void {
    const key = keyOf(protocol, place)
    const sockets = this.#sockets.get(key) ?? new Set()
    this.#sockets.set(key, sockets.add(abort))
    return () => {
      sockets.delete(abort)
      if (sockets.size === 0 && this.#sockets.get(key) === sockets) this.#sockets.delete(key)
    }
  }

  /** Gives the sockets that a client with this address may belong to. */
  at(protocol: 'TCP' | 'UDP', place: Place): readonly Abort[] {
    return [...(this.#sockets.get(keyOf(protocol, place)) ?? [])]
  }

  /** Counts a connection that came back. */
  countLoop(): void {
    this.#loops++
  }
}

interface Place {
  readonly address: string
  readonly port: number
}

function keyOf(protocol: 'TCP' | 'UDP', { address, port }: Place): string {
  return `${protocol} ${address} ${port}`
}
