/**
 * An immutable map from string keys, shared between versions: a new version copies only the buckets it touches, and
 * comparing two versions skips every bucket they share, so that both cost what changed and not what is there.
 *
 * The bucket count is fixed: at 50,000 entries a bucket holds about 50, and one change copies one bucket and the
 * directory (8 KiB).
 */
const BUCKETS = 1024

type Bucket<V> = ReadonlyMap<string, V>

export class PersistentMap<V> {
  readonly size: number
  readonly #buckets: readonly (Bucket<V> | undefined)[]

  private constructor(buckets: readonly (Bucket<V> | undefined)[], size: number) {
    this.#buckets = buckets
    this.size = size
  }

  static empty<V>(): PersistentMap<V> {
    return new PersistentMap<V>(new Array<Bucket<V> | undefined>(BUCKETS).fill(undefined), 0)
  }

  static from<V>(entries: Iterable<readonly [string, V]>): PersistentMap<V> {
    return PersistentMap.empty<V>().with(entries)
  }

  get(key: string): V | undefined {
    return this.#buckets[bucketOf(key)]?.get(key)
  }

  has(key: string): boolean {
    return this.#buckets[bucketOf(key)]?.has(key) === true
  }

  /** A version in which each entry is set, or removed where its value is undefined. Later entries win. */
  with(entries: Iterable<readonly [string, V | undefined]>): PersistentMap<V> {
    const buckets = this.#buckets.slice()
    const own = new Map<number, Map<string, V>>()
    let size = this.size
    for (const [key, value] of entries) {
      const index = bucketOf(key)
      let bucket = own.get(index)
      if (bucket === undefined) {
        const shared = buckets[index]
        if (shared?.get(key) === value && (value !== undefined || shared?.has(key) !== true)) continue
        bucket = new Map(shared)
        own.set(index, bucket)
        buckets[index] = bucket
      }
      const before = bucket.size
      if (value === undefined) bucket.delete(key)
      else bucket.set(key, value)
      size += bucket.size - before
    }
    return own.size === 0 ? this : new PersistentMap<V>(buckets, size)
  }

  *entries(): IterableIterator<[string, V]> {
    for (const bucket of this.#buckets) if (bucket !== undefined) yield* bucket
  }

  *keys(): IterableIterator<string> {
    for (const bucket of this.#buckets) if (bucket !== undefined) yield* bucket.keys()
  }

  *values(): IterableIterator<V> {
    for (const bucket of this.#buckets) if (bucket !== undefined) yield* bucket.values()
  }

  /** The keys whose values differ (by identity) between two versions, in no particular order. */
  static *changes<V>(from: PersistentMap<V>, to: PersistentMap<V>): IterableIterator<string> {
    for (const [key] of PersistentMap.differences(from, to)) yield key
  }

  /** As changes(), each with its value in `from` and in `to`: undefined where it has none. */
  static *differences<V>(
    from: PersistentMap<V>,
    to: PersistentMap<V>,
  ): IterableIterator<readonly [key: string, before: V | undefined, after: V | undefined]> {
    if (from === to) return
    for (let index = 0; index < BUCKETS; index++) {
      const a = from.#buckets[index]
      const b = to.#buckets[index]
      if (a === b) continue
      if (a !== undefined) {
        for (const [key, before] of a) {
          const after = b?.get(key)
          if (after !== before) yield [key, before, after]
        }
      }
      if (b !== undefined) {
        for (const [key, after] of b) if (a?.has(key) !== true) yield [key, undefined, after]
      }
    }
  }
}

/** FNV-1a over the UTF-16 units. */
function bucketOf(key: string): number {
  let hash = 0x811c9dc5
  for (let i = 0; i < key.length; i++) hash = Math.imul(hash ^ key.charCodeAt(i), 0x01000193)
  return (hash ^ (hash >>> 15)) & (BUCKETS - 1)
}
