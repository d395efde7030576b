import { readU32host } from '../../base/octets.ts'
import type { ElementGroup } from '../../kernel/nft/state.ts'
import { CODE_MASK } from './layout.ts'

/** Counts how often the elements of one table use shared objects. Zeros are left out. */
export interface Tally {
  /** Uses by code: which chains are in use. */
  readonly codes: ReadonlyMap<number, number>
  /** Uses by prefix length: which source-range rules are in use. */
  readonly prefixLengths: ReadonlyMap<number, number>
  /** Number of elements by set. */
  readonly elements: ReadonlyMap<string, number>
}

export const NOTHING: Tally = { codes: new Map(), prefixLengths: new Map(), elements: new Map() }

/** Counts during one render. */
export class TallyDraft {
  readonly #codes: Map<number, Count>
  readonly #prefixLengths: Map<number, Count>
  readonly #elements: Map<string, Count>

  constructor(base: Tally) {
    this.#codes = counting(base.codes)
    this.#prefixLengths = counting(base.prefixLengths)
    this.#elements = counting(base.elements)
  }

  add(group: ElementGroup): void {
    this.#count(group, 1)
  }

  remove(group: ElementGroup): void {
    this.#count(group, -1)
  }

  /** The prefix lengths in use, longest first. */
  get prefixLengths(): readonly number[] {
    return [...counted(this.#prefixLengths).keys()].sort((a, b) => b - a)
  }

  elements(set: string): number {
    return this.#elements.get(set)?.count ?? 0
  }

  /** The current counts. */
  get codes(): ReadonlyMap<number, number> {
    return counted(this.#codes)
  }

  finish(): Tally {
    return {
      codes: this.codes,
      prefixLengths: counted(this.#prefixLengths),
      elements: counted(this.#elements),
    }
  }

  #count(group: ElementGroup, by: 1 | -1): void {
    // Elements of one set are adjacent, which saves most lookups.
    let set = ''
    let count: Count = { count: 0 }
    let uses: Map<number, Count> | undefined
    for (let i = 0; i < group.length; i++) {
      const element = group[i]
      if (element === undefined) break
      if (element.set !== set) {
        set = element.set
        count = countOf(this.#elements, set)
        uses = this.#usesOf(set)
      }
      count.count += by
      if (uses === undefined) continue
      const { key, data } = element
      countOf(uses, readU32host(typeof data === 'string' ? data : key) & CODE_MASK).count += by
    }
  }

  /** Gives the counts of what the elements of a set use; undefined where they use nothing shared. */
  #usesOf(set: string): Map<number, Count> | undefined {
    if (set === 'frontends' || set === 'nodeports') return this.#codes
    return set === 'ranges' ? this.#prefixLengths : undefined
  }
}

/** A counter that is changed in place: to replace an entry in a Map takes another lookup. */
interface Count {
  count: number
}

function counting<K>(counts: ReadonlyMap<K, number>): Map<K, Count> {
  const counters = new Map<K, Count>()
  for (const [key, count] of counts) counters.set(key, { count })
  return counters
}

function counted<K>(counters: ReadonlyMap<K, Count>): ReadonlyMap<K, number> {
  const counts = new Map<K, number>()
  for (const [key, { count }] of counters) if (count !== 0) counts.set(key, count)
  return counts
}

function countOf<K>(counters: Map<K, Count>, key: K): Count {
  const known = counters.get(key)
  if (known !== undefined) return known
  const count = { count: 0 }
  counters.set(key, count)
  return count
}
