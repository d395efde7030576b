import { FIRM, levelOf, namespaceOf } from '../../model/memory-shares.ts'

/**
 * Counts the objects of one resource by namespace. Beyond `max`, a namespace that has its share gets no further ones;
 * what it has stays. So n namespaces that want more than their shares have at most 1 + 1/2 + … + 1/n times `max`.
 */
export class ObjectShares {
  readonly #max: number
  readonly #counts = new Map<string, number>()
  #total = 0
  /** What a namespace may have, computed for this total. */
  #level = Number.POSITIVE_INFINITY
  #levelTotal = -1
  readonly #cut = new Set<string>()

  constructor(max: number) {
    this.#max = max
  }

  /** Namespaces with objects that were not admitted. */
  get cut(): ReadonlySet<string> {
    return this.#cut
  }

  isCut(key: string): boolean {
    return this.#cut.has(namespaceOf(key))
  }

  /** A cut namespace may have more objects again. */
  get hasRoom(): boolean {
    if (this.#cut.size === 0) return false
    if (this.#total < FIRM * this.#max) return true
    const level = FIRM * this.#levelNow()
    return [...this.#cut].some(namespace => this.#countOf(namespace) < level)
  }

  /** Whether there is room for one more object of this key, which must not be counted yet. Cuts its namespace if not. */
  admits(key: string): boolean {
    if (this.#total < this.#max) return true
    const namespace = namespaceOf(key)
    if (this.#countOf(namespace) < this.#levelNow()) return true
    this.#cut.add(namespace)
    return false
  }

  added(key: string): void {
    const namespace = namespaceOf(key)
    this.#counts.set(namespace, this.#countOf(namespace) + 1)
    this.#total++
  }

  removed(key: string): void {
    const namespace = namespaceOf(key)
    const left = this.#countOf(namespace) - 1
    if (left > 0) this.#counts.set(namespace, left)
    else this.#counts.delete(namespace)
    this.#total--
  }

  #countOf(namespace: string): number {
    return this.#counts.get(namespace) ?? 0
  }

  /** Costs the number of namespaces after each hundredth of change. */
  #levelNow(): number {
    if (this.#levelTotal < 0 || Math.abs(this.#total - this.#levelTotal) > this.#max / 100) {
      this.#level = levelOf([...this.#counts.values()], Math.min(this.#max, this.#total - 1))
      this.#levelTotal = this.#total
    }
    return this.#level
  }
}
