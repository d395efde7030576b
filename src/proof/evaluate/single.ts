import { assert } from '../../base/errors.ts'
import type { Ip } from '../../base/ip.ts'
import { type Octets, zeros } from '../../base/octets.ts'
import type { VirtualServer } from '../../kernel/ipvs/state.ts'
import { formatElement } from '../../kernel/nft/print-data.ts'
import type { Element } from '../../kernel/nft/state.ts'
import type { ClassSets, Remembered, SetChange } from './sets.ts'
import type { RulePlace, Value } from './values.ts'

/** Elements that packets wrote, by `family table set`, then by key; undefined for elements that packets removed. */
export type DynamicElements = ReadonlyMap<string, ReadonlyMap<Octets, Octets | undefined>>

/** A rule that took effect, and those before it. */
export interface PathStep {
  readonly before: PathStep | undefined
  readonly place: RulePlace
  /** Elements that its lookups found, as nft prints them. */
  readonly elements: readonly string[]
  /** The virtual server, if the rule stands for IPVS. */
  readonly server: VirtualServer | undefined
}

/**
 * The maximum number of entries that xt_recent keeps in one list by default (parameter ip_list_tot). It evicts the
 * oldest.
 */
export const RECENT_ENTRIES_MAX = 100

/** The key prefix among the elements that packets wrote: `recent NAME`. */
const RECENT_PREFIX = 'recent '
const TEMPLATES = 'ipvs templates'
const NONE: readonly string[] = []

interface Single {
  readonly source: Ip
  readonly dynamic: DynamicElements
  /** Returns a whole number from 0 up to, not including, `modulus`; undefined to follow all numbers. */
  readonly random: ((modulus: number) => number) | undefined
  readonly ways: { left: number }
}

/** A packet that is followed by itself: its path, and what packets wrote. Time does not pass. */
export class SinglePacket {
  path: PathStep | undefined
  dynamic: DynamicElements
  #found = NONE
  readonly #of: Single

  constructor(of: Single) {
    this.#of = of
    this.dynamic = of.dynamic
  }

  /** Follows one way more. Throws where there are too many. */
  copy(): SinglePacket {
    const { ways } = this.#of
    if (ways.left-- <= 0) throw new Error('the packet has too many ways')
    const copy = new SinglePacket(this.#of)
    copy.path = this.path
    copy.dynamic = this.dynamic
    copy.#found = this.#found
    return copy
  }

  random(modulus: number): number | undefined {
    return this.#of.random?.(modulus)
  }

  beginRule(): void {
    this.#found = NONE
  }

  pass(place: RulePlace, server: VirtualServer | undefined): void {
    // Packets to no virtual server pass IPVS.
    if (place.rule === undefined && server === undefined) return
    this.path = { before: this.path, place, elements: this.#found, server }
  }

  look(sets: ClassSets, set: string, key: Value): void {
    const element = this.#find(sets, set, key)
    if (element !== undefined)
      this.#found = [...this.#found, `${set}: ${formatElement(sets.setOf(set), element)}`]
  }

  #find(sets: ClassSets, set: string, key: Value): Element | undefined {
    assert(typeof key === 'string', 'a single packet has one key')
    const written = this.#written(sets, set)
    if (written?.has(key) !== true) return sets.elementAt(set, key)
    const data = written.get(key)
    return data === undefined ? undefined : { set, key, data, comment: '' }
  }

  /** Answers for what packets wrote. */
  remembered(sets: ClassSets, set: string, key: Value): Remembered | undefined {
    const written = typeof key === 'string' ? this.#written(sets, set) : undefined
    return typeof key === 'string' && written?.has(key) === true ? { data: written.get(key) } : undefined
  }

  /** Returns false when the set is full. */
  write(sets: ClassSets, { op, set, key, data }: SetChange): boolean {
    assert(typeof key === 'string' && typeof data === 'string', 'a single packet has one key')
    const written = new Map(this.#written(sets, set))
    if (op === 'delete') {
      this.#put(nameOf(sets, set), written.set(key, undefined))
      return true
    }
    this.look(sets, set, key)
    // Neither add nor update replaces the data of a live element (kernel: nft_dynset_eval).
    if (this.#find(sets, set, key) !== undefined) return true
    const { size } = sets.setOf(set)
    if (size > 0 && countOf(sets, set, written) >= size) return false
    this.#put(nameOf(sets, set), written.set(key, data))
    return true
  }

  recall(place: string): Octets | undefined {
    return this.dynamic.get(TEMPLATES)?.get(this.#of.source + place)
  }

  remember(place: string, data: Octets): void {
    this.#put(TEMPLATES, new Map(this.dynamic.get(TEMPLATES)).set(this.#of.source + place, data))
  }

  /** Lists belong to the network namespace and contain both families. */
  isListed(list: string): boolean {
    return this.dynamic.get(RECENT_PREFIX + list)?.has(this.#of.source) === true
  }

  enlist(list: string): void {
    const { source } = this.#of
    const name = RECENT_PREFIX + list
    const clients = new Map(this.dynamic.get(name))
    const [oldest] = clients.keys()
    if (!clients.delete(source) && clients.size >= RECENT_ENTRIES_MAX && oldest !== undefined)
      clients.delete(oldest)
    this.#put(name, clients.set(source, zeros(0)))
  }

  #written(sets: ClassSets, set: string): ReadonlyMap<Octets, Octets | undefined> | undefined {
    return this.dynamic.get(nameOf(sets, set))
  }

  #put(name: string, elements: ReadonlyMap<Octets, Octets | undefined>): void {
    this.dynamic = new Map(this.dynamic).set(name, elements)
  }
}

/** Forgets lists that no rule names: they exist as long as one does. */
export function withoutOldLists(dynamic: DynamicElements, lists?: ReadonlySet<string>): DynamicElements {
  if (lists === undefined) return dynamic
  const kept = [...dynamic].filter(
    ([key]) => !key.startsWith(RECENT_PREFIX) || lists.has(key.slice(RECENT_PREFIX.length)),
  )
  return kept.length === dynamic.size ? dynamic : new Map(kept)
}

function nameOf({ name }: ClassSets, set: string): string {
  return `${name} ${set}`
}

function countOf(sets: ClassSets, set: string, written: ReadonlyMap<Octets, Octets | undefined>): number {
  let count = sets.sizeOf(set)
  for (const [key, data] of written) {
    const isHeld = sets.elementAt(set, key) !== undefined
    if (isHeld !== (data !== undefined)) count += data === undefined ? -1 : 1
  }
  return count
}
