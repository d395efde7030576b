import { namespaceOf } from '../../model/memory-shares.ts'
import type { ObjectIndex, Version } from './object-index.ts'
import { isOlder } from './resource-version.ts'

/**
 * Compares the server's list with the state that its events gave. A list and a watch are never at the same point, so
 * that what differs is only suspected at first, and judged again once the watch has passed the list.
 */
export class Comparison {
  readonly #index: ObjectIndex
  readonly #isLeftOut: (key: string) => boolean
  readonly #seen = new Set<string>()
  /** Namespaces of which objects were left out: another one may have taken their place before the list is whole. */
  readonly #cut = new Set<string>()
  /** The listed version, undefined for objects that are not listed. */
  readonly #suspects = new Map<string, Version | undefined>()

  /** `isLeftOut` tests whether an object that is not in the index is missing there for want of room. */
  constructor(index: ObjectIndex, isLeftOut: (key: string) => boolean) {
    this.#index = index
    this.#isLeftOut = isLeftOut
  }

  take(key: string, version: Version): void {
    const held = this.#index.get(key)
    if (held === undefined && this.#isLeftOut(key)) {
      this.#cut.add(namespaceOf(key))
      return
    }
    this.#seen.add(key)
    if (held?.uid !== version.uid || held.resourceVersion !== version.resourceVersion)
      this.#suspects.set(key, version)
  }

  /** The list is whole. Gives how many objects differ. */
  end(): number {
    for (const key of this.#index.keys())
      if (!this.#seen.has(key) && !this.#cut.has(namespaceOf(key))) this.#suspects.set(key, undefined)
    this.#seen.clear()
    return this.#suspects.size
  }

  /** How many of them still differ, other than by being newer than the list of this version. */
  confirmed(listVersion: string): number {
    let lost = 0
    for (const [key, listed] of this.#suspects) if (this.#isLost(key, listed, listVersion)) lost++
    return lost
  }

  #isLost(key: string, listed: Version | undefined, listVersion: string): boolean {
    const held = this.#index.get(key)
    if (listed === undefined) return held !== undefined && !isOlder(listVersion, held.resourceVersion)
    if (held === undefined) {
      const tombstone = this.#index.tombstone(key)
      return tombstone === undefined || !isOlder(listVersion, tombstone.resourceVersion)
    }
    const isEqual = held.uid === listed.uid && held.resourceVersion === listed.resourceVersion
    return !isEqual && !isOlder(listed.resourceVersion, held.resourceVersion)
  }
}
