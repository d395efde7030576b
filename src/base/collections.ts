import { assert } from './errors.ts'

/**
 * An immutable map from string keys whose versions share one native Map: the version used last holds it, and every
 * other one holds how it differs from a neighbor (H. Baker, "Shallow binding makes functional arrays fast", 1991).
 * Reading or extending the newest version costs what a Map costs; comparing two versions, or going back to an older
 * one, costs what changed between them and not what is there. Iteration follows the order of insertion, so that a walk
 * over a large map meets its values in the order in which memory was given to them.
 */
export class PersistentMap<V> {
  readonly size: number
  #content: Content<V>

  private constructor(content: Content<V>, size: number) {
    this.#content = content
    this.size = size
  }

  static empty<V>(): PersistentMap<V> {
    return new PersistentMap<V>({ map: new Map() }, 0)
  }

  static from<V>(entries: Iterable<readonly [string, V]>): PersistentMap<V> {
    const map = new Map(entries)
    return new PersistentMap<V>({ map }, map.size)
  }

  /** Adopts a Map without a copy: the caller must not write to it any more. */
  static owning<V>(map: Map<string, V>): PersistentMap<V> {
    return new PersistentMap<V>({ map }, map.size)
  }

  get(key: string): V | undefined {
    if (this.size === 0) return undefined
    let content = this.#content
    while ('undo' in content) {
      if (content.undo.has(key)) return content.undo.get(key)
      content = content.newer.#content
    }
    return content.map.get(key)
  }

  has(key: string): boolean {
    return this.get(key) !== undefined
  }

  /** A version in which each entry is set, or removed where its value is undefined. Later entries win. */
  with(entries: Iterable<readonly [string, V | undefined]>): PersistentMap<V> {
    // Read to the end first: a generator may look at this very map, or throw.
    const list = Array.isArray(entries) || entries instanceof Map ? entries : [...entries]
    if (this.size === 0) return this.#firstContent(list)
    const map = this.#reroot()
    const undo = new Map<string, V | undefined>()
    for (const [key, value] of list) {
      const old = map.get(key)
      if (old === value) continue
      if (!undo.has(key)) undo.set(key, old)
      if (value === undefined) map.delete(key)
      else map.set(key, value)
    }
    if (undo.size === 0) return this
    const newer = new PersistentMap<V>({ map }, map.size)
    this.#content = { undo, newer }
    return newer
  }

  /** Takes over a Map that the caller no longer uses: it becomes the first version, or the record of a later one. */
  withOwn(changes: Map<string, V | undefined>): PersistentMap<V> {
    if (this.size === 0)
      return isFilled(changes) ? PersistentMap.owning(changes) : this.#firstContent(changes)
    if (changes.size === 0) return this
    const map = this.#reroot()
    changes.forEach((value, key) => {
      const old = map.get(key)
      if (old === value) {
        changes.delete(key)
        return
      }
      if (value === undefined) map.delete(key)
      else map.set(key, value)
      changes.set(key, old)
    })
    if (changes.size === 0) return this
    const newer = new PersistentMap<V>({ map }, map.size)
    this.#content = { undo: changes, newer }
    return newer
  }

  /** A list of its own: the Map may be handed on to another version before a walk ends. */
  keys(): readonly string[] {
    return this.size === 0 ? [] : [...this.#reroot().keys()]
  }

  values(): readonly V[] {
    return this.size === 0 ? [] : [...this.#reroot().values()]
  }

  entries(): readonly (readonly [string, V])[] {
    return this.size === 0 ? [] : [...this.#reroot()]
  }

  /** The keys whose values differ (by identity) between two versions, in no particular order. */
  static changes<V>(from: PersistentMap<V>, to: PersistentMap<V>): readonly string[] {
    const changed: string[] = []
    for (const key of candidates(from, to)) if (from.get(key) !== to.get(key)) changed.push(key)
    return changed
  }

  /** Gives the keys of changes() with their values in `from` and in `to`; undefined where absent. */
  static *differences<V>(
    from: PersistentMap<V>,
    to: PersistentMap<V>,
  ): IterableIterator<readonly [key: string, before: V | undefined, after: V | undefined]> {
    for (const key of PersistentMap.changes(from, to)) yield [key, from.get(key), to.get(key)]
  }

  /** Gives an upper bound of the number of keys that differ. Cost follows the number of versions between the two. */
  static distance<V>(from: PersistentMap<V>, to: PersistentMap<V>): number {
    if (from === to) return 0
    const between = versionsBetween(from, to)
    if (between === undefined) return from.size + to.size
    return between.reduce((sum, version) => sum + PersistentMap.ownSize(version), 0)
  }

  /** The versions from `start` to the one that holds the Map. */
  static lineage<V>(start: PersistentMap<V>): PersistentMap<V>[] {
    const versions = [start]
    for (let content = start.#content; 'undo' in content; content = content.newer.#content)
      versions.push(content.newer)
    return versions
  }

  /**
   * Drops `between`, the version right after `older`, once no caller reads it: `older` then follows the next version
   * directly, with its own values of the keys that changed in either step. `newest` gets the Map. Does nothing where
   * `between` does not follow `older` directly.
   */
  static skip<V>(older: PersistentMap<V>, between: PersistentMap<V>, newest: PersistentMap<V>): void {
    newest.#reroot()
    const [first, second] = [older.#content, between.#content]
    if (!('undo' in first) || first.newer !== between || !('undo' in second)) return
    const { map } = 'map' in second.newer.#content ? second.newer.#content : { map: undefined }
    for (const [key, value] of second.undo) {
      const before = first.undo.has(key) ? first.undo.get(key) : value
      // Names that come and go while `older` is held would add up.
      if (map !== undefined && map.get(key) === before) first.undo.delete(key)
      else first.undo.set(key, before)
    }
    older.#content = { undo: first.undo, newer: second.newer }
  }

  /** Keys in which this version differs from its neighbor in the lineage. */
  static ownKeys<V>(version: PersistentMap<V>): Iterable<string> {
    return 'undo' in version.#content ? version.#content.undo.keys() : []
  }

  /** Counts the keys of ownKeys(). */
  static ownSize<V>(version: PersistentMap<V>): number {
    return 'undo' in version.#content ? version.#content.undo.size : 0
  }

  /** Nothing is undone for an empty version: it keeps a Map of its own. */
  #firstContent(entries: Iterable<readonly [string, V | undefined]>): PersistentMap<V> {
    const map = new Map<string, V>()
    for (const [key, value] of entries) {
      if (value !== undefined) map.set(key, value)
      else map.delete(key)
    }
    return map.size === 0 ? this : new PersistentMap<V>({ map }, map.size)
  }

  /** Makes this version the one that holds the Map. */
  #reroot(): Map<string, V> {
    const versions = PersistentMap.lineage(this)
    for (const version of versions.reverse()) version.#takeMap()
    assert('map' in this.#content, 'every lineage ends with a version that holds the Map')
    return this.#content.map
  }

  /** Takes the Map over from the neighbor that holds it. */
  #takeMap(): void {
    if (!('undo' in this.#content)) return
    const { undo, newer } = this.#content
    if ('undo' in newer.#content) return
    const { map } = newer.#content
    const redo = new Map<string, V | undefined>()
    for (const [key, value] of undo) {
      redo.set(key, map.get(key))
      if (value === undefined) map.delete(key)
      else map.set(key, value)
    }
    newer.#content = { undo: redo, newer: this }
    this.#content = { map }
  }
}

type Content<V> =
  | { readonly map: Map<string, V> }
  | { readonly undo: Map<string, V | undefined>; readonly newer: PersistentMap<V> }

function isFilled<V>(map: Map<string, V | undefined>): map is Map<string, V> {
  if (map.size === 0) return false
  let filled = true
  map.forEach(value => {
    filled &&= value !== undefined
  })
  return filled
}

/** Gives the keys that may differ: in one lineage, those that changed between the two versions; otherwise all keys. */
function candidates<V>(from: PersistentMap<V>, to: PersistentMap<V>): Iterable<string> {
  if (from === to) return []
  const between = versionsBetween(from, to)
  if (between === undefined) {
    if (from.size === 0) return to.keys()
    const keys = new Set(to.keys())
    for (const key of from.keys()) keys.add(key)
    return keys
  }
  const keys = new Set<string>()
  for (const version of between) for (const key of PersistentMap.ownKeys(version)) keys.add(key)
  return keys
}

/** The versions between two versions of one lineage; undefined when they belong to two. */
function versionsBetween<V>(
  from: PersistentMap<V>,
  to: PersistentMap<V>,
): readonly PersistentMap<V>[] | undefined {
  const before = PersistentMap.lineage(from)
  const after = PersistentMap.lineage(to)
  if (before.at(-1) !== after.at(-1)) return undefined
  // From where the two lineages meet they are one.
  while (before.length > 0 && before.at(-1) === after.at(-1)) {
    before.pop()
    after.pop()
  }
  return [...before, ...after]
}

/*
 * Values that live long and are many: what V8 keeps beyond their contents adds up to a third of the memory.
 */

const EMPTY: readonly never[] = []

/** A copy of a list that push has filled, and left room for 16 more items in. */
export function trimmed<T>(list: readonly T[]): readonly T[] {
  return list.length === 0 ? EMPTY : list.slice()
}

/** The parts as one piece of text: + and templates keep every part alive until the result is read. */
export function joined(parts: readonly string[], separator = ''): string {
  return parts.join(separator)
}

/** Maps a list, and leaves out what gives undefined. */
export function mapDefined<T, R>(list: readonly T[], of: (item: T, index: number) => R | undefined): R[] {
  const results: R[] = []
  // V8 takes several times as long for flatMap.
  list.forEach((item, index) => {
    const result = of(item, index)
    if (result !== undefined) results.push(result)
  })
  return results
}

/** Appends an item to the list of a key, and creates the list for the first one. */
export function append<K, T>(lists: Map<K, T[]>, key: K, item: T): void {
  const list = lists.get(key)
  if (list === undefined) lists.set(key, [item])
  else list.push(item)
}
