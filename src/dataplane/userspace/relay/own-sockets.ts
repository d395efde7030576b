/**
 * Addresses of this process' own sockets towards endpoints. A connection that arrives from one of them was redirected
 * back to us: relaying it again would never end.
 */
export class OwnSockets {
  readonly #keys = new Set<string>()
  #met = 0

  /** How often one came back. */
  get met(): number {
    return this.#met
  }

  get size(): number {
    return this.#keys.size
  }

  add(protocol: 'TCP' | 'UDP', address: string, port: number): () => void {
    const key = keyOf(protocol, address, port)
    this.#keys.add(key)
    return () => this.#keys.delete(key)
  }

  /** Whether a client is one of us. */
  meets(protocol: 'TCP' | 'UDP', address: string, port: number): boolean {
    const isOurs = this.#keys.has(keyOf(protocol, address, port))
    if (isOurs) this.#met++
    return isOurs
  }
}

function keyOf(protocol: 'TCP' | 'UDP', address: string, port: number): string {
  return `${protocol} ${address} ${port}`
}
