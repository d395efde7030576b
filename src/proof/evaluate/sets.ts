import { append } from '../../base/collections.ts'
import { assert } from '../../base/errors.ts'
import type { Octets } from '../../base/octets.ts'
import { NFT_SET_EVAL } from '../../kernel/nft/constants.ts'
import type { Element, ElementData, ElementGroup, NftSet } from '../../kernel/nft/state.ts'
import { type Range, rangesOf } from './ranges.ts'
import {
  BeyondEvaluator,
  type Candidate,
  chosenOf,
  type Known,
  type Value,
  type Wishes,
  type Word,
} from './values.ts'

/** The content of dynamic sets for the packets of a class. */
type Memory =
  /** Nothing: a client is new. */
  | { readonly kind: 'new' }
  /** Nothing, and there is no room. */
  | { readonly kind: 'full' }
  /** An earlier packet wrote this. */
  | { readonly kind: 'known'; readonly data: Octets }

export interface MemoryLog {
  memory: Memory
  /** The first words of the keys that were looked up, with their set. */
  readonly asked: Set<string>
  /** First words of the written keys. Entries of a list of `recent` that no rule looks up last 0 seconds. */
  readonly wrote: Set<string>
  /** Data by set and first word of the key. */
  readonly written: Map<string, Set<Octets>>
  /** The seconds for which the lists of `recent` that were looked up remember a client; 0 for ever. */
  readonly seconds: Map<string, number>
}

export function newLog(): MemoryLog {
  return {
    memory: { kind: 'new' },
    asked: new Set(),
    wrote: new Set(),
    written: new Map(),
    seconds: new Map(),
  }
}

/** Begins to follow a class whose clients are new. */
export function beginLog(log: MemoryLog): void {
  log.memory = { kind: 'new' }
  log.asked.clear()
  log.wrote.clear()
  log.seconds.clear()
}

/** Gives what an earlier packet wrote at a place. */
export function recall({ memory, asked }: MemoryLog, place: string): Octets | undefined {
  asked.add(place)
  return memory.kind === 'known' ? memory.data : undefined
}

export function noteWritten({ written }: MemoryLog, place: string, data: Iterable<Octets>): void {
  const known = written.get(place) ?? new Set()
  written.set(place, known)
  for (const each of data) known.add(each)
}

/* A list of `recent` is a set that packets fill: its name is the data. It evicts the oldest client and is never full. */

export function isListed(log: MemoryLog, list: string, forS: number): boolean {
  log.seconds.set(list, Math.min(forS, log.seconds.get(list) ?? forS))
  return recall(log, placeOfList(list)) === list
}

/** Adds the client to a list. Gives how long lookups remember it. */
export function enlist(log: MemoryLog, list: string): number {
  noteWritten(log, placeOfList(list), [list])
  return (log.seconds.get(list) ?? 0) * 1000
}

const LIST_PLACE = 'recent '

function placeOfList(list: string): string {
  return `${LIST_PLACE}${list}`
}

/** Tests whether a place of `asked` is a list of `recent`. */
export function isPlaceOfList(place: string): boolean {
  return place.startsWith(LIST_PLACE)
}

export interface Remembered {
  /** Undefined when the key is not in the set. */
  readonly data: Octets | undefined
}

export interface SetChange {
  readonly op: 'add' | 'update' | 'delete'
  readonly set: string
  readonly key: Value
  readonly data: Known
  /** The numbers that `data` follows from. */
  readonly rolled: readonly number[] | undefined
  readonly timeoutMs: number
}

const NONE: readonly Candidate[] = []

type Index = Map<Octets, ElementGroup>

interface TableSets {
  readonly name: string
  readonly sets: ReadonlyMap<string, NftSet>
  readonly elements: Iterable<ElementGroup>
  readonly isOwn: boolean
}

/** The sets of one table as classes of packets read them. */
export class ClassSets {
  readonly name: string
  readonly #sets: ReadonlyMap<string, NftSet>
  readonly #given: Iterable<ElementGroup>
  #filled: ReadonlyMap<string, Map<Octets, Element>> | undefined
  /** An index for each set and each group of known words of the key: elements by these words. */
  readonly #indexes = new Map<string, (Index | undefined)[]>()
  /** By candidates, then by the fields of their keys: many classes meet the same lookup. */
  readonly wishes = new WeakMap<readonly Candidate[], Map<string, Wishes>>()
  readonly #log: MemoryLog
  readonly #isOwn: boolean

  constructor({ name, sets, elements, isOwn }: TableSets, log: MemoryLog) {
    this.name = name
    this.#sets = sets
    this.#log = log
    this.#isOwn = isOwn
    this.#given = elements
  }

  /** The elements of each set by key, from the first lookup on. */
  get #elements(): ReadonlyMap<string, Map<Octets, Element>> {
    this.#filled ??= elementsByKey(this.#sets.keys(), this.#given)
    return this.#filled
  }

  #isFilledByPackets(set: string): boolean {
    return (this.setOf(set).flags & NFT_SET_EVAL) !== 0
  }

  setOf(name: string): NftSet {
    const set = this.#sets.get(name)
    assert(set !== undefined, `table ${this.name} has no set ${name}`)
    return set
  }

  find(name: string, key: Octets): ElementData | null {
    const element = this.#exact(name).get(key)
    return element === undefined ? undefined : (element.data ?? null)
  }

  elementAt(name: string, key: Octets): Element | undefined {
    return this.#exact(name).get(key)
  }

  sizeOf(name: string): number {
    return this.#exact(name).size
  }

  findAmong(name: string, words: readonly Word[]): readonly Candidate[] {
    this.#exact(name)
    let key = ''
    let pattern = 0
    for (let at = 0; at < words.length; at++) {
      const word = words[at]
      if (typeof word !== 'string') continue
      pattern |= 1 << at
      key += word
    }
    return this.#indexBy(pattern, name, words.length).get(key) ?? NONE
  }

  /** `pattern` has a bit for each word that is known. */
  #indexBy(pattern: number, name: string, words: number): Index {
    const indexes = this.#indexes.get(name) ?? []
    const known = indexes[pattern]
    if (known !== undefined) return known
    const index = new Map<Octets, Element[]>()
    for (const element of this.#elements.get(name)?.values() ?? [])
      append(index, partOf(element.key, pattern, words), element)
    indexes[pattern] = index
    this.#indexes.set(name, indexes)
    return index
  }

  /** Packets fill sets of other programs by rules that may be beyond the evaluator. */
  #checkOwn(name: string): void {
    if (!this.#isOwn) throw new BeyondEvaluator(`cannot trace a set that packets fill (${name})`)
  }

  #exact(name: string): ReadonlyMap<Octets, Element> {
    const elements = this.#elements.get(name) ?? new Map<Octets, Element>()
    if (elements.has('')) throw new BeyondEvaluator(`cannot trace an element for all other keys (${name})`)
    return elements
  }

  readonly #ranges = new Map<string, readonly Range[]>()

  ranges(name: string): readonly Range[] {
    const elements = this.#exact(name)
    const known = this.#ranges.get(name) ?? rangesOf([...elements.values()], this.setOf(name))
    this.#ranges.set(name, known)
    return known
  }

  remembered(name: string, key: Value): Remembered | undefined {
    if (!this.#isFilledByPackets(name)) return undefined
    this.#checkOwn(name)
    return { data: recall(this.#log, placeOf(this.name, name, key)) }
  }

  remember({ op, set, key, data, rolled }: SetChange): boolean {
    this.#checkOwn(set)
    if (op === 'delete') return true
    if (this.#log.memory.kind === 'full') return false
    const place = placeOf(this.name, set, key)
    this.#log.wrote.add(place)
    noteWritten(this.#log, place, chosenOf(data, rolled))
    return true
  }

  /** Data that the kernel holds at a place of `asked`. */
  *heldAt(place: string): Generator<Octets, void, undefined> {
    for (const [name, elements] of this.#elements) {
      if (!this.#isFilledByPackets(name)) continue
      for (const { key, data } of elements.values())
        if (typeof data === 'string' && placeOf(this.name, name, key) === place) yield data
    }
  }
}

function elementsByKey(
  sets: Iterable<string>,
  groups: Iterable<ElementGroup>,
): ReadonlyMap<string, Map<Octets, Element>> {
  const elements = new Map<string, Map<Octets, Element>>()
  for (const set of sets) elements.set(set, new Map())
  for (const group of groups)
    for (const element of group) elements.get(element.set)?.set(placeIn(element), element)
  return elements
}

/** The end of an interval may have the key of the next one. */
function placeIn({ key, isEnd }: Element): Octets {
  return isEnd === true ? `${key} end` : key
}

export function noSets(log: MemoryLog): ClassSets {
  return new ClassSets({ name: '', sets: new Map(), elements: [], isOwn: true }, log)
}

/** Gives the words of a key that a pattern has a bit for. */
function partOf(key: Octets, pattern: number, words: number): Octets {
  let part = ''
  for (let at = 0; at < words; at++)
    if ((pattern >> at) & 1) part += key.slice(at * 4, at * 4 + 4).padEnd(4, '\0')
  return part
}

/** The first word of the key, which no packet chooses, identifies entries of sets that packets fill. */
function placeOf(table: string, set: string, key: Value): string {
  const first = key[0]
  const word = typeof key === 'string' ? key.slice(0, 4) : typeof first === 'string' ? first : ''
  return `${table} ${set} ${word}`
}
