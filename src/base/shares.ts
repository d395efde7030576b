/** A party that holds items, as part of the party before it in a path: a prefix, then an address in it. */
export interface Owner {
  readonly name: string
  /** Items that it may hold; no limit of its own unless given. */
  readonly limit?: number
  /** Items of it that others cannot take; none unless given. */
  readonly reserved?: number
}

type Admission<Item> =
  | { readonly kind: 'accepted' }
  /** The item is in, and `victim` is out; `owner` is the party that was at its limit, and `victimOf` the path of the victim. */
  | {
      readonly kind: 'evicted'
      readonly owner: string
      readonly victim: Item
      readonly victimOf: readonly string[]
    }
  /** Every item that could go is busy, and its owner holds no more than that of the new one. */
  | { readonly kind: 'refused'; readonly owner: string }

interface Holder {
  readonly key: string
  readonly name: string
  readonly limit: number
  readonly reserved: number
  held: number
}

interface Entry<Item> {
  readonly item: Item
  /** The whole first. */
  readonly path: readonly Holder[]
  isBusy: boolean
}

/**
 * Divides a bounded number of items between their owners. When an owner, or the whole, is at its limit, the largest party
 * in it loses an item: an idle one before a busy one, and the longest idle first. A new item is idle. An
 * admission without a victim costs the length of its path, one with a victim a pass over all items.
 */
export class Shares<Item> {
  readonly #whole: Holder
  readonly #holders = new Map<string, Holder>()
  /** Longest idle first. */
  readonly #entries = new Map<Item, Entry<Item>>()

  constructor(limit: number) {
    this.#whole = { key: '', name: 'all', limit: Math.max(1, limit), reserved: 0, held: 0 }
  }

  get held(): number {
    return this.#whole.held
  }

  /** `owners` from the largest party to the smallest; equally many at each admission. */
  admit(item: Item, owners: readonly Owner[]): Admission<Item> {
    const path = this.#pathOf(owners)
    const full = path.findLast(({ held, limit }) => held >= limit)
    if (full === undefined) {
      this.#enter(item, path)
      return { kind: 'accepted' }
    }
    const victim = this.#victimIn(path.indexOf(full), path)
    if (victim === undefined) return { kind: 'refused', owner: full.name }
    this.leave(victim.item)
    this.#enter(item, path)
    const victimOf = victim.path.slice(1).map(({ name }) => name)
    return { kind: 'evicted', owner: full.name, victim: victim.item, victimOf }
  }

  /** Marks an item as busy until it is marked again, or as idle from now on. */
  mark(item: Item, state: 'busy' | 'idle'): void {
    const entry = this.#entries.get(item)
    if (entry === undefined) return
    entry.isBusy = state === 'busy'
    this.#entries.delete(item)
    this.#entries.set(item, entry)
  }

  /** Idempotent. */
  leave(item: Item): void {
    const entry = this.#entries.get(item)
    if (entry === undefined) return
    this.#entries.delete(item)
    for (const holder of entry.path) if (--holder.held === 0) this.#holders.delete(holder.key)
  }

  #pathOf(owners: readonly Owner[]): readonly Holder[] {
    let key = ''
    const path = [this.#whole]
    for (const { name, limit = Infinity, reserved = 0 } of owners) {
      key += `${name}\0`
      const known = this.#holders.get(key)
      path.push(known ?? { key, name, limit: Math.max(1, limit), reserved, held: 0 })
    }
    return path
  }

  #enter(item: Item, path: readonly Holder[]): void {
    const isBusy = false
    this.#entries.set(item, { item, path, isBusy })
    for (const holder of path) {
      holder.held++
      if (holder !== this.#whole) this.#holders.set(holder.key, holder)
    }
  }

  /** Picks the item that goes for one of `path`, among those of the holder at this depth of the path. */
  #victimIn(depth: number, path: readonly Holder[]): Entry<Item> | undefined {
    let worst: Entry<Item> | undefined
    for (const entry of this.#entries.values()) {
      if (entry.path[depth] !== path[depth] || isInReserve(entry, depth, path)) continue
      if (worst === undefined || comesBefore(entry, worst, depth)) worst = entry
    }
    return worst?.isBusy === true && !holdsMore(worst.path, path) ? undefined : worst
  }
}

function isInReserve<Item>(entry: Entry<Item>, depth: number, path: readonly Holder[]): boolean {
  const holder = entry.path[depth + 1]
  return holder !== undefined && holder !== path[depth + 1] && holder.held <= holder.reserved
}

/** Whether an item goes before another one that is idle for longer. */
function comesBefore<Item>(entry: Entry<Item>, other: Entry<Item>, depth: number): boolean {
  for (let at = depth + 1; at < entry.path.length; at++) {
    const more = (entry.path[at]?.held ?? 0) - (other.path[at]?.held ?? 0)
    if (more !== 0) return more > 0
  }
  return other.isBusy && !entry.isBusy
}

/** Compares by two at least: otherwise two parties would displace each other in turn. */
function holdsMore(path: readonly Holder[], than: readonly Holder[]): boolean {
  const at = path.findIndex((holder, index) => holder !== than[index])
  return (path[at]?.held ?? 0) > (than[at]?.held ?? 0) + 1
}
