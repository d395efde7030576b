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
  readonly #codes: Map<number, number>
  readonly #prefixLengths: Map<number, number>
  readonly #elements: Map<string, number>

  constructor(base: Tally) {
    this.#codes = new Map(base.codes)
    this.#prefixLengths = new Map(base.prefixLengths)
    this.#elements = new Map(base.elements)
  }

  /** Counts the elements of a group, or with -1 no longer. Elements of one set are adjacent. */
  count(group: ElementGroup, by: 1 | -1): void {
    for (let start = 0; start < group.length; ) {
      const set = group[start]?.set ?? ''
      let end = start + 1
      while (end < group.length && group[end]?.set === set) end++
      add(this.#elements, set, by * (end - start))
      const uses = this.#usesOf(set)
      for (let i = start; uses !== undefined && i < end; i++) {
        const { key = '', data } = group[i] ?? {}
        add(uses, readU32host(typeof data === 'string' ? data : key) & CODE_MASK, by)
      }
      start = end
    }
  }

  /** The prefix lengths in use, longest first. */
  get prefixLengths(): readonly number[] {
    return [...this.#prefixLengths.keys()].sort((a, b) => b - a)
  }

  elements(set: string): number {
    return this.#elements.get(set) ?? 0
  }

  /** The current counts. */
  get codes(): ReadonlyMap<number, number> {
    return this.#codes
  }

  /** Gives the counts; the draft counts no more. */
  finish(): Tally {
    return { codes: this.#codes, prefixLengths: this.#prefixLengths, elements: this.#elements }
  }

  /** Gives the counts of what the elements of a set use; undefined where they use nothing shared. */
  #usesOf(set: string): Map<number, number> | undefined {
    if (set === 'frontends' || set === 'nodeports') return this.#codes
    return set === 'ranges' ? this.#prefixLengths : undefined
  }
}

function add<K>(counts: Map<K, number>, key: K, by: number): void {
  const count = (counts.get(key) ?? 0) + by
  if (count === 0) counts.delete(key)
  else counts.set(key, count)
}
