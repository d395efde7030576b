import { readU32host } from '../../base/octets.ts'
import type { ElementGroup } from '../../kernel/nft/state.ts'
import { CODE_MASK } from './layout.ts'

/** How often elements of one table use what is shared. Zeros are left out. */
export interface Tally {
  /** By code: which chains are in use. */
  readonly codes: ReadonlyMap<number, number>
  /** By length: which source-range rules are in use. */
  readonly prefixLengths: ReadonlyMap<number, number>
  /** By set: elements. */
  readonly elements: ReadonlyMap<string, number>
}

export const NOTHING: Tally = { codes: new Map(), prefixLengths: new Map(), elements: new Map() }

/** Counts along during one render. */
export class TallyDraft {
  readonly #codes: Map<number, number>
  readonly #prefixLengths: Map<number, number>
  readonly #elements: Map<string, number>

  constructor(base: Tally) {
    this.#codes = new Map(base.codes)
    this.#prefixLengths = new Map(base.prefixLengths)
    this.#elements = new Map(base.elements)
  }

  add(group: ElementGroup): void {
    this.#count(group, 1)
  }

  remove(group: ElementGroup): void {
    this.#count(group, -1)
  }

  get codes(): ReadonlyMap<number, number> {
    return this.#codes
  }

  /** Longest first. */
  get prefixLengths(): readonly number[] {
    return [...this.#prefixLengths.keys()].sort((a, b) => b - a)
  }

  elements(set: string): number {
    return this.#elements.get(set) ?? 0
  }

  finish(): Tally {
    return { codes: this.#codes, prefixLengths: this.#prefixLengths, elements: this.#elements }
  }

  #count(group: ElementGroup, by: 1 | -1): void {
    // Elements of one set stand together: counting runs spares most of the look-ups.
    let run = 0
    let set = ''
    for (const element of group) {
      if (element.set !== set) {
        if (run > 0) bump(this.#elements, set, by * run)
        set = element.set
        run = 0
      }
      run++
      if (set === 'endpoints' || set === 'slots') continue
      if ((set === 'frontends' || set === 'nodeports') && typeof element.data === 'string')
        bump(this.#codes, readU32host(element.data) & CODE_MASK, by)
      else if (set === 'ranges') bump(this.#prefixLengths, readU32host(element.key) & CODE_MASK, by)
    }
    if (run > 0) bump(this.#elements, set, by * run)
  }
}

function bump<K>(counts: Map<K, number>, key: K, by: number): void {
  const count = (counts.get(key) ?? 0) + by
  if (count === 0) counts.delete(key)
  else counts.set(key, count)
}
