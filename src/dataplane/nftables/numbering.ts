import { PersistentMap } from '../../base/persistent-map.ts'
import { CODE_FIRST, CODE_MASK, ID_MAX } from './layout.ts'

/** Ids of service ports in one table. */
export interface Ids {
  /** By PortFrontends.key. */
  readonly byPort: PersistentMap<number>
  /** One bit an id that is in use; never written once it is here. */
  readonly used: Uint32Array
  readonly usedCount: number
  /** Where the search for a free id goes on: rotating, so that an id freed is not given away soon. */
  readonly next: number
  /** Ids that no service port has, but that entries of clients made before us still name. */
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
  readonly #changes = new Map<string, number | undefined>()
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

  /** Frees the id of a port at the end, unless it is kept or taken before. */
  retire(port: string): void {
    this.#retired.add(port)
  }

  keep(port: string): void {
    if (this.#retired.size > 0) this.#retired.delete(port)
  }

  /** The id of a port, a new one if it has none; undefined when all are in use. */
  take(port: string): number | undefined {
    const known = this.#base.byPort.get(port) ?? this.#changes.get(port)
    if (known !== undefined) return known
    const id = this.#free()
    if (id === undefined) return undefined
    this.#set(id)
    this.#changes.set(port, id)
    return id
  }

  finish(): Ids {
    for (const port of this.#retired) {
      const id = this.#base.byPort.get(port)
      if (id === undefined) continue
      this.#clear(id)
      this.#changes.set(port, undefined)
    }
    if (this.#changes.size === 0) return this.#base
    return {
      byPort: this.#base.byPort.with(this.#changes),
      used: this.#used,
      usedCount: this.#usedCount,
      next: this.#next,
      reserved: this.#base.reserved,
    }
  }

  #free(): number | undefined {
    if (this.#usedCount + this.#base.reserved.size >= ID_MAX) return undefined
    for (let tries = 0; tries < ID_MAX; tries++) {
      const id = this.#next
      this.#next = id === ID_MAX ? 1 : id + 1
      if (!isUsed(this.#used, id) && !this.#base.reserved.has(id)) return id
    }
    return undefined
  }

  #set(id: number): void {
    this.#own()
    this.#used[id >>> 5] = (this.#used[id >>> 5] ?? 0) | (1 << (id & 31))
    this.#usedCount++
  }

  #clear(id: number): void {
    this.#own()
    this.#used[id >>> 5] = (this.#used[id >>> 5] ?? 0) & ~(1 << (id & 31))
    this.#usedCount--
  }

  /** Copies 64 KiB once for each render that changes ids: a few microseconds. */
  #own(): void {
    if (this.#used === this.#base.used) this.#used = this.#base.used.slice()
  }
}

function isUsed(used: Uint32Array, id: number): boolean {
  return ((used[id >>> 5] ?? 0) & (1 << (id & 31))) !== 0
}

/** Ids found in the kernel. `byPort` gives no id twice. */
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

/** Hands out codes during one render. A code given up by the base is free one render later. */
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

  /** Undefined when all codes are in use. */
  take(chain: string): number | undefined {
    const known = this.#base.get(chain) ?? this.#added.get(chain)
    if (known !== undefined) return known
    this.#taken ??= new Set(this.#base.values())
    while (this.#taken.has(this.#next)) this.#next++
    if (this.#next > CODE_MASK) return undefined
    this.#added.set(chain, this.#next)
    return this.#next++
  }

  /** Codes of the chains that are there in the end. */
  finish(chains: ReadonlySet<string>): Codes {
    const codes = new Map<string, number>()
    for (const [chain, code] of this.all()) if (chains.has(chain)) codes.set(chain, code)
    return codes
  }
}
