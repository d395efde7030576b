import type { Refusal, WatchedIdentity } from '../../model/fields.ts'
import type { SourceEvent } from '../../model/snapshot.ts'
import { agedIn, candidateOf, type ObjectCap, partsIn, type Weight, weightOf } from '../object-cap.ts'
import { isOlder, type Version } from './object-index.ts'

export interface Change {
  readonly kind: string
}

export interface Identified extends WatchedIdentity {
  readonly version: Version
}

/** An object of a list; `parsed` is undefined when it stands as it did before. */
export interface Listed<E extends Change> {
  readonly key: string
  readonly version: Version
  readonly parsed: E | Refusal | undefined
}

interface ListingOptions<E extends Change> {
  readonly identify: (object: unknown) => Identified | undefined
  readonly parse: (identified: Identified) => E | Refusal | undefined
  readonly held: (key: string) => Version | undefined
  readonly weightHeld: (key: string) => Weight | undefined
  readonly cap: ObjectCap | undefined
}

/** A list while it arrives; changes nothing before it lands. */
export class Listing<E extends Change = SourceEvent> {
  readonly #options: ListingOptions<E>
  readonly #items = new Map<string, Listed<E>>()
  #refused = 0

  constructor(options: ListingOptions<E>) {
    this.#options = options
  }

  get size(): number {
    return this.#items.size
  }

  /** Grows with each object that was not there before, also where there is no room for it. */
  get arrived(): number {
    return this.#items.size + this.#refused
  }

  /** Counts the objects of the list, as those that are held are counted once it has landed. */
  get cap(): ObjectCap | undefined {
    return this.#options.cap
  }

  has(key: string): boolean {
    return this.#items.has(key)
  }

  items(): Iterable<Listed<E>> {
    return this.#items.values()
  }

  take(object: unknown): void {
    const identified = this.#identify(object)
    if (identified === undefined) return
    const { key, version } = identified
    const { cap } = this.#options
    if (cap?.isCut === true && cap.refuses(agedIn(identified))) {
      this.#refused++
      cap.refuse(candidateOf(identified), () => partsIn(this.#options.parse(identified)))
      return
    }
    const held = this.#options.held(key)
    const stands = held?.uid === version.uid && held.resourceVersion === version.resourceVersion
    const parsed = stands ? undefined : this.#options.parse(identified)
    this.#items.set(key, { key, version, parsed })
    if (cap === undefined) return
    cap.put(key, (stands && this.#options.weightHeld(key)) || weightOf(identified, parsed))
    this.#drop(cap.overflow())
  }

  #drop(keys: readonly string[]): void {
    for (const key of keys) this.#items.delete(key)
    this.#refused += keys.length
  }

  /** Nothing more arrives: of what there is no room for, nothing stays. */
  end(): void {
    this.#drop(this.#options.cap?.overflow(0) ?? [])
  }

  /** It was deleted while a streaming list was under way. */
  drop(object: unknown): void {
    const key = this.#identify(object)?.key
    if (key === undefined) return
    this.#items.delete(key)
    this.#options.cap?.remove(key)
    this.#options.cap?.unrefuse(key)
  }

  /** Undefined as well for a state before one that has arrived. */
  #identify(object: unknown): Identified | undefined {
    const identified = this.#options.identify(object)
    if (identified === undefined) return undefined
    const twin = this.#items.get(identified.key)?.version.resourceVersion
    return twin !== undefined && isOlder(identified.version.resourceVersion, twin) ? undefined : identified
  }
}
