import { assert } from '../../base/errors.ts'
import type { Octets } from '../../base/octets.ts'
import type { Element, ElementData, NftSet, Table } from './state.ts'
import type { SetAccess, SetChange } from '../evaluate/machine.ts'
import type { DynamicElements } from './trace-packet.ts'

/** The elements of one table by set and key: built once, used by every trace. */
export type ElementIndex = ReadonlyMap<string, ReadonlyMap<Octets, Element>>

export function indexElements(table: Table): ElementIndex {
  const index = new Map<string, Map<Octets, Element>>()
  for (const name of table.sets.keys()) index.set(name, new Map())
  for (const group of table.elements.values()) {
    for (const element of group) index.get(element.set)?.set(element.key, element)
  }
  return index
}

/** One packet's view of a table's sets; its writes do not change the table. */
export class PacketSets implements SetAccess {
  readonly #table: Table
  readonly #index: ElementIndex
  readonly #written = new Map<string, Map<Octets, Octets | undefined>>()
  readonly #seen: (set: NftSet, element: Element) => void

  /** `seen` receives each element that a lookup finds. */
  constructor(
    table: Table,
    index: ElementIndex,
    options: {
      readonly dynamic: DynamicElements | undefined
      readonly seen: (set: NftSet, element: Element) => void
    },
  ) {
    this.#table = table
    this.#index = index
    this.#seen = options.seen
    for (const name of table.sets.keys()) {
      const known = options.dynamic?.get(this.#nameOf(name))
      if (known !== undefined) this.#written.set(name, new Map(known))
    }
  }

  find(name: string, key: Octets): ElementData | null {
    const set = this.#set(name)
    const written = this.#written.get(name)
    if (written?.has(key) === true) {
      const data = written.get(key)
      if (data !== undefined) this.#seen(set, { set: name, key, data, comment: '' })
      return data
    }
    const element = this.#index.get(name)?.get(key)
    if (element === undefined) return undefined
    this.#seen(set, element)
    return element.data ?? null
  }

  remember({ op, set, key, data }: SetChange): boolean {
    assert(typeof key === 'string' && typeof data === 'string', `a key of ${set} is not known`)
    if (op === 'delete') {
      this.#changes(set).set(key, undefined)
      return true
    }
    // Neither add nor update replaces the data of a live element (kernel: nft_dynset_eval).
    if (this.find(set, key) !== undefined) return true
    const { size } = this.#set(set)
    if (size > 0 && this.#count(set) >= size) return false
    this.#changes(set).set(key, data)
    return true
  }

  setOf(name: string): NftSet {
    return this.#set(name)
  }

  /** Returns `before` with the elements that the packet wrote and removed. */
  after(before: DynamicElements | undefined): DynamicElements {
    const after = new Map(before)
    for (const [name, changes] of this.#written) after.set(this.#nameOf(name), changes)
    return after
  }

  #count(name: string): number {
    let count = this.#index.get(name)?.size ?? 0
    for (const [key, data] of this.#written.get(name) ?? []) {
      const there = this.#index.get(name)?.has(key) === true
      if (there !== (data !== undefined)) count += data === undefined ? -1 : 1
    }
    return count
  }

  #changes(name: string): Map<Octets, Octets | undefined> {
    const known = this.#written.get(name)
    if (known !== undefined) return known
    const changes = new Map<Octets, Octets | undefined>()
    this.#written.set(name, changes)
    return changes
  }

  #set(name: string): NftSet {
    const set = this.#table.sets.get(name)
    assert(set !== undefined, `table ${this.#table.name} has no set ${name}`)
    return set
  }

  #nameOf(set: string): string {
    return `${this.#table.family} ${this.#table.name} ${set}`
  }
}
