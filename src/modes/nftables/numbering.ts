import { readU32host } from '../../base/octets.ts'
import { PersistentMap } from '../../base/persistent-map.ts'
import type { ElementGroup } from '../../kernel/nft/state.ts'
import { CODE_FIRST, CODE_MASK, ID_MAX } from './layout.ts'

/** The ids of service ports in one table. */
export interface Ids {
  /** By PortFrontends.key. */
  readonly byPort: PersistentMap<number>
  /** One bit for each id in use. The array is immutable once it is part of this value. */
  readonly used: Uint32Array
  readonly usedCount: number
  /**
   * The position at which the search for a free id continues. It rotates, so that a freed id is not reused
   * soon.
   */
  readonly next: number
  /**
   * Ids that belong to no service port, but that affinity entries written before this process started still
   * name.
   */
  readonly reserved: ReadonlySet<number>
}

const WORDS = (ID_MAX + 1) >>> 5

export const NO_IDS: Ids = {
  byPort: PersistentMap.empty(),
  used: new Uint32Array(WORDS),
  usedCount: 0,
  next: 1,
  reserved: new Set(),
}

/** Hands out ids during one render. */
export class IdDraft {
  readonly #base: Ids
  readonly #added = new Map<string, number>()
  readonly #retired = new Set<string>()
  #used: Uint32Array
  #usedCount: number
  #next: number

  constructor(base: Ids) {
    this.#base = base
    this.#used = base.used
    this.#usedCount = base.usedCount
    this.#next = base.next
  }

  /**
   * Frees the id of a port at the end of the render, unless keep() or take() is called for the port first.
   */
  retire(port: string): void {
    this.#retired.add(port)
  }

  keep(port: string): void {
    this.#retired.delete(port)
  }

  /** False when no id is retired. */
  get hasRetired(): boolean {
    return this.#retired.size > 0
  }

  /** Gives the id of a port, or a new one if it has none; undefined when all ids are in use. */
  take(port: string): number | undefined {
    const known = this.#base.byPort.size === 0 ? undefined : this.#base.byPort.get(port)
    if (known !== undefined) return known
    const added = this.#added.get(port)
    if (added !== undefined) return added
    const id = this.#free()
    if (id !== undefined) this.#added.set(port, id)
    return id
  }

  finish(): Ids {
    const gone: [string, undefined][] = []
    for (const port of this.#retired) {
      const id = this.#base.byPort.get(port)
      if (id === undefined) continue
      this.#clear(id)
      gone.push([port, undefined])
    }
    if (this.#added.size + gone.length === 0) return this.#base
    const { byPort } = this.#base
    return {
      byPort: byPort.size === 0 ? PersistentMap.owning(this.#added) : byPort.with([...gone, ...this.#added]),
      used: this.#used,
      usedCount: this.#usedCount,
      next: this.#next,
      reserved: this.#base.reserved,
    }
  }

  /** Takes the next free id. */
  #free(): number | undefined {
    const { reserved } = this.#base
    if (this.#usedCount + reserved.size >= ID_MAX) return undefined
    const used = this.#own()
    for (let tries = 0; tries < ID_MAX; tries++) {
      const id = this.#next
      this.#next = id === ID_MAX ? 1 : id + 1
      const word = used[id >>> 5] ?? 0
      const bit = 1 << (id & 31)
      if ((word & bit) !== 0 || (reserved.size > 0 && reserved.has(id))) continue
      used[id >>> 5] = word | bit
      this.#usedCount++
      return id
    }
    return undefined
  }

  #clear(id: number): void {
    const used = this.#own()
    used[id >>> 5] = (used[id >>> 5] ?? 0) & ~(1 << (id & 31))
    this.#usedCount--
  }

  /** Copies the bit set: 64 KiB once for each render that changes ids, which takes a few microseconds. */
  #own(): Uint32Array {
    if (this.#used === this.#base.used) this.#used = this.#base.used.slice()
    return this.#used
  }
}

/** Makes Ids from the ids found in the kernel. `byPort` contains no id twice. */
export function idsInUse(byPort: ReadonlyMap<string, number>, reserved: ReadonlySet<number>): Ids {
  const used = new Uint32Array(WORDS)
  let last = 0
  for (const id of byPort.values()) {
    used[id >>> 5] = (used[id >>> 5] ?? 0) | (1 << (id & 31))
    last = Math.max(last, id)
  }
  for (const id of reserved) last = Math.max(last, id)
  const next = last === ID_MAX ? 1 : last + 1
  return { byPort: PersistentMap.from(byPort), used, usedCount: byPort.size, next, reserved }
}

/** Codes of chains: by the chain's name. */
export type Codes = ReadonlyMap<string, number>

/** Hands out codes during one render. A code that the base releases is free one render later. */
export class CodeDraft {
  readonly #base: Codes
  readonly #added = new Map<string, number>()
  #taken: ReadonlySet<number> | undefined
  #next = CODE_FIRST

  constructor(base: Codes) {
    this.#base = base
  }

  *all(): IterableIterator<[string, number]> {
    yield* this.#base
    yield* this.#added
  }

  /** Gives the code of a chain; undefined when all codes are in use. */
  take(chain: string): number | undefined {
    const known = this.#base.get(chain) ?? this.#added.get(chain)
    if (known !== undefined) return known
    this.#taken ??= new Set(this.#base.values())
    while (this.#taken.has(this.#next)) this.#next++
    if (this.#next > CODE_MASK) return undefined
    this.#added.set(chain, this.#next)
    return this.#next++
  }

  /** Gives the codes of the chains that the finished table has. */
  finish(chains: ReadonlySet<string>): Codes {
    const codes = new Map<string, number>()
    for (const [chain, code] of this.all()) if (chains.has(chain)) codes.set(chain, code)
    return codes
  }
}

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

  /** Uses by prefix length, at the moment. */
  get perPrefixLength(): ReadonlyMap<number, number> {
    return this.#prefixLengths
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
