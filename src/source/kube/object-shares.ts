import { FIRM, levelOf, namespaceOf } from '../../model/memory-shares.ts'

/**
 * Counts the objects of one resource by namespace. Where there are `max`, a namespace that has its share gets no further
 * ones. What it has stays: n namespaces that want more than their shares, one after the other, get 1 + 1/2 + … + 1/n
 * times `max` at most. A list divides `max` exactly, as far as its objects are new.
 */
export class ObjectShares {
  readonly max: number
  readonly #counts: Map<string, number>
  /** Objects that were left out, by namespace. */
  readonly #leftOut = new Map<string, number>()
  #total: number
  /** What a namespace may have, computed for this total. */
  #level = Number.POSITIVE_INFINITY
  #levelTotal = -1

  constructor(max: number, counts: ReadonlyMap<string, number> = new Map()) {
    this.max = max
    this.#counts = new Map(counts)
    this.#total = [...counts.values()].reduce((sum, count) => sum + count, 0)
  }

  /** The same counts, without what is left out. */
  copy(): ObjectShares {
    return new ObjectShares(this.max, this.#counts)
  }

  /** Namespaces of which objects are left out. */
  get cut(): Iterable<string> {
    return this.#leftOut.keys()
  }

  get isCut(): boolean {
    return this.#leftOut.size > 0
  }

  isCutAt(key: string): boolean {
    return this.#leftOut.has(namespaceOf(key))
  }

  /** A namespace of which objects are left out may have more again. */
  get hasRoom(): boolean {
    if (!this.isCut) return false
    if (this.#total < FIRM * this.max) return true
    const level = FIRM * this.#levelNow()
    return [...this.cut].some(namespace => this.#countOf(namespace) < level)
  }

  /** Whether there is room for one more object of this key, which is not counted yet. */
  admits(key: string): boolean {
    return this.#total < this.max || this.#countOf(namespaceOf(key)) < this.#levelNow()
  }

  added(key: string): void {
    this.#move(this.#counts, key, 1)
    this.#total++
  }

  removed(key: string): void {
    this.#move(this.#counts, key, -1)
    this.#total--
  }

  /** An object that was not admitted. */
  leftOut(key: string): void {
    this.#move(this.#leftOut, key, 1)
  }

  /** An object that was left out exists no longer. */
  leftOutRemoved(key: string): void {
    this.#move(this.#leftOut, key, -1)
  }

  /** What each namespace may have when all that were left out are counted as well; infinite where all fit. */
  get fairLevel(): number {
    const asked = new Map(this.#counts)
    for (const [namespace, count] of this.#leftOut) asked.set(namespace, this.#countOf(namespace) + count)
    return levelOf([...asked.values()], this.max)
  }

  #countOf(namespace: string): number {
    return this.#counts.get(namespace) ?? 0
  }

  #move(counts: Map<string, number>, key: string, by: 1 | -1): void {
    const namespace = namespaceOf(key)
    const count = (counts.get(namespace) ?? 0) + by
    if (count > 0) counts.set(namespace, count)
    else counts.delete(namespace)
  }

  /** Costs the number of namespaces after each hundredth of change. */
  #levelNow(): number {
    if (this.#levelTotal < 0 || Math.abs(this.#total - this.#levelTotal) > this.max / 100) {
      this.#level = levelOf([...this.#counts.values()], Math.min(this.max, this.#total - 1))
      this.#levelTotal = this.#total
    }
    return this.#level
  }
}
