/** Words of an entry: protocol, two addresses, and two ports in one. */
const WORDS = 4
const LENGTH_MIN = 1 << 10
/** Share of a table that is used at most. */
const USED_MAX = 0.5

/** Remembers a value for each pair of a plain IPv4 message: a table of numbers, since Map hashes large numbers slowly. */
export class PairTable<V> {
  #keys = new Uint32Array(WORDS * LENGTH_MIN)
  #values: (V | undefined)[] = new Array(LENGTH_MIN)
  #size = 0

  get size(): number {
    return this.#size
  }

  /** Gives the value of a key of four words, whose first one is not 0. */
  get(key: Uint32Array): V | undefined {
    return this.#values[this.#at(key)]
  }

  set(key: Uint32Array, value: V): void {
    if (this.#size >= this.#values.length * USED_MAX) this.#grow()
    const at = this.#at(key)
    if (this.#values[at] === undefined) this.#size++
    this.#keys.set(key, at * WORDS)
    this.#values[at] = value
  }

  clear(): void {
    this.#keys = new Uint32Array(WORDS * LENGTH_MIN)
    this.#values = new Array(LENGTH_MIN)
    this.#size = 0
  }

  /** Finds the place of a key, or the free one that it would get. */
  #at(key: Uint32Array): number {
    const keys = this.#keys
    const mask = this.#values.length - 1
    let at = hashOf(key) & mask
    while (keys[at * WORDS] !== 0 && !isAt(keys, at * WORDS, key)) at = (at + 1) & mask
    return at
  }

  #grow(): void {
    const [keys, values] = [this.#keys, this.#values]
    this.#keys = new Uint32Array(2 * keys.length)
    this.#values = new Array(2 * values.length)
    for (const [at, value] of values.entries()) {
      if (value === undefined) continue
      const key = keys.subarray(at * WORDS, (at + 1) * WORDS)
      const to = this.#at(key)
      this.#keys.set(key, to * WORDS)
      this.#values[to] = value
    }
  }
}

function isAt(keys: Uint32Array, at: number, key: Uint32Array): boolean {
  return keys[at] === key[0] && keys[at + 1] === key[1] && keys[at + 2] === key[2] && keys[at + 3] === key[3]
}

function hashOf(key: Uint32Array): number {
  let hash = 0
  for (let i = 0; i < WORDS; i++) {
    hash = Math.imul(hash ^ (key[i] ?? 0), 0x9e37_79b1)
    hash ^= hash >>> 15
  }
  return hash >>> 0
}
