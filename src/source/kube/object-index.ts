import { isJson, type Json } from '../../model/fields.ts'
import { FIRM, levelOf, namespaceOf } from '../../model/memory-shares.ts'

/** Which state of which object. */
export interface Version {
  /** Empty when the server gives none. */
  readonly uid: string
  readonly resourceVersion: string
}

/** Reads the version of an object. Undefined without a resource version: nothing can be said about its age. */
export function versionOf(object: unknown): Version | undefined {
  const { metadata } = isJson(object) ? object : {}
  return isJson(metadata) ? versionIn(metadata) : undefined
}

/** The same, of metadata. */
export function versionIn({ uid, resourceVersion }: Json): Version | undefined {
  if (typeof resourceVersion !== 'string' || resourceVersion === '') return undefined
  return { uid: typeof uid === 'string' ? uid : '', resourceVersion }
}

export type PutVerdict =
  | 'added'
  | 'changed'
  /** Another object of the same name: the one before it is gone. */
  | 'recreated'
  | 'same'
  /** Older than what is held, or than the deletion of what was. */
  | 'older'

type RemoveVerdict = 'removed' | 'unknown' | 'older'

/** Deletions remembered; an older state that comes later than that is for the consistency check. */
const TOMBSTONES_MAX = 4_096

/**
 * The last delivered version of each object, without the object, and the latest deletions. No version goes back.
 * As large as what the server holds.
 */
export class ObjectIndex {
  readonly #held = new Map<string, Version>()
  /** The last versions of deleted objects; oldest first. */
  readonly #tombstones = new Map<string, Version>()

  get size(): number {
    return this.#held.size
  }

  get(key: string): Version | undefined {
    return this.#held.get(key)
  }

  /** The deletion of what had this key, if it is remembered. */
  tombstone(key: string): Version | undefined {
    return this.#tombstones.get(key)
  }

  keys(): Iterable<string> {
    return this.#held.keys()
  }

  put(key: string, version: Version): PutVerdict {
    const verdict = this.#judge(key, version)
    if (verdict !== 'older' && verdict !== 'same') this.#hold(key, version)
    return verdict
  }

  /** Holds this version whatever its age: time itself went back, as after a restored backup. */
  overwrite(key: string, version: Version): PutVerdict {
    const held = this.#held.get(key)
    this.#hold(key, version)
    if (held === undefined) return 'added'
    if (!isSameObject(held, version)) return 'recreated'
    return held.resourceVersion === version.resourceVersion ? 'same' : 'changed'
  }

  /** `version` is the state in which the object was deleted, or left what is selected. */
  remove(key: string, version: Version): RemoveVerdict {
    const held = this.#held.get(key)
    if (held === undefined) return 'unknown'
    if (isOlder(version.resourceVersion, held.resourceVersion)) return 'older'
    if (!isSameObject(held, version) && !isOlder(held.resourceVersion, version.resourceVersion))
      return 'older'
    this.#bury(key, version)
    return 'removed'
  }

  /** A list of this version does not have it. */
  removeUnlisted(key: string, listVersion: string): void {
    const uid = this.#held.get(key)?.uid ?? ''
    this.#bury(key, { uid, resourceVersion: listVersion })
  }

  forgetTombstones(): void {
    this.#tombstones.clear()
  }

  /** Which objects exist stays known, but not in which state: everything that comes is news. */
  forgetVersions(): void {
    for (const key of this.#held.keys()) this.forgetVersion(key)
    this.forgetTombstones()
  }

  /** The same of one object. */
  forgetVersion(key: string): void {
    const held = this.#held.get(key)
    if (held !== undefined) this.#held.set(key, { uid: held.uid, resourceVersion: '' })
  }

  #judge(key: string, version: Version): PutVerdict {
    const held = this.#held.get(key)
    if (held === undefined) {
      const tombstone = this.#tombstones.get(key)
      const isFresh = tombstone === undefined || !isUpTo(version.resourceVersion, tombstone.resourceVersion)
      return isFresh ? 'added' : 'older'
    }
    if (isOlder(version.resourceVersion, held.resourceVersion)) return 'older'
    if (!isSameObject(held, version)) return 'recreated'
    return held.resourceVersion === version.resourceVersion ? 'same' : 'changed'
  }

  #hold(key: string, version: Version): void {
    this.#held.set(key, version)
    this.#tombstones.delete(key)
  }

  #bury(key: string, version: Version): void {
    this.#held.delete(key)
    this.#tombstones.delete(key)
    this.#tombstones.set(key, version)
    if (this.#tombstones.size <= TOMBSTONES_MAX) return
    for (const oldest of this.#tombstones.keys()) {
      this.#tombstones.delete(oldest)
      break
    }
  }
}

function isSameObject(a: Version, b: Version): boolean {
  return a.uid === b.uid || a.uid === '' || b.uid === ''
}

function isUpTo(version: string, limit: string): boolean {
  return version === limit || isOlder(version, limit)
}

/*
 * Resource versions stay text: they exceed what a number holds. Equality always means something; order only under the
 * rule of KEP-5504 (decimal digits without a leading zero, compared by length, then as text), and only within one
 * resource. "0" means "any" in a request and nothing in an answer.
 */

const ORDERABLE = /^[1-9][0-9]*$/

/** Negative, zero or positive; undefined when one of them cannot be ordered. */
export function compareVersions(a: string, b: string): number | undefined {
  if (!ORDERABLE.test(a) || !ORDERABLE.test(b)) return undefined
  if (a.length !== b.length) return a.length - b.length
  return a === b ? 0 : a < b ? -1 : 1
}

/** False, too, when they cannot be ordered. */
export function isOlder(a: string, b: string): boolean {
  const order = compareVersions(a, b)
  return order !== undefined && order < 0
}

/** Whether a watch can begin there. */
export function isPosition(version: string): boolean {
  return version !== '' && version !== '0'
}

/** The position of a watch at `position` that receives `heard`: it never goes back. */
export function advanced(position: string, heard: string): string {
  return !isPosition(heard) || isOlder(heard, position) ? position : heard
}

/**
 * Counts the objects of one resource by namespace. Where there are `max`, a namespace that has its share gets no further
 * ones. What it has stays: n namespaces that want more than their shares, one after the other, get 1 + 1/2 + … + 1/n
 * times `max` at most. A list divides `max` exactly, as far as its objects are new.
 */
export class ObjectShares {
  readonly max: number
  readonly #counts: Map<string, number>
  /** Objects that were left out, by namespace. */
  readonly #leftOut = new Map<string, number>()
  #total: number
  /** What a namespace may have, computed for this total. */
  #level = Number.POSITIVE_INFINITY
  #levelTotal = -1

  constructor(max: number, counts: ReadonlyMap<string, number> = new Map()) {
    this.max = max
    this.#counts = new Map(counts)
    this.#total = [...counts.values()].reduce((sum, count) => sum + count, 0)
  }

  /** The same counts, without what is left out. */
  copy(): ObjectShares {
    return new ObjectShares(this.max, this.#counts)
  }

  /** Namespaces of which objects are left out. */
  get cut(): Iterable<string> {
    return this.#leftOut.keys()
  }

  get isCut(): boolean {
    return this.#leftOut.size > 0
  }

  isCutAt(key: string): boolean {
    return this.#leftOut.has(namespaceOf(key))
  }

  /** A namespace of which objects are left out may have more again. */
  get hasRoom(): boolean {
    if (!this.isCut) return false
    if (this.#total < FIRM * this.max) return true
    const level = FIRM * this.#levelNow()
    return [...this.cut].some(namespace => this.#countOf(namespace) < level)
  }

  /** Whether there is room for one more object of this key, which is not counted yet. */
  admits(key: string): boolean {
    return this.#total < this.max || this.#countOf(namespaceOf(key)) < this.#levelNow()
  }

  added(key: string): void {
    this.#move(this.#counts, key, 1)
    this.#total++
  }

  removed(key: string): void {
    this.#move(this.#counts, key, -1)
    this.#total--
  }

  /** An object that was not admitted. */
  leftOut(key: string): void {
    this.#move(this.#leftOut, key, 1)
  }

  /** An object that was left out exists no longer. */
  leftOutRemoved(key: string): void {
    this.#move(this.#leftOut, key, -1)
  }

  /** What each namespace may have when all that were left out are counted as well; infinite where all fit. */
  get fairLevel(): number {
    const asked = new Map(this.#counts)
    for (const [namespace, count] of this.#leftOut) asked.set(namespace, this.#countOf(namespace) + count)
    return levelOf([...asked.values()], this.max)
  }

  #countOf(namespace: string): number {
    return this.#counts.get(namespace) ?? 0
  }

  #move(counts: Map<string, number>, key: string, by: 1 | -1): void {
    const namespace = namespaceOf(key)
    const count = (counts.get(namespace) ?? 0) + by
    if (count > 0) counts.set(namespace, count)
    else counts.delete(namespace)
  }

  /** Costs the number of namespaces after each hundredth of change. */
  #levelNow(): number {
    if (this.#levelTotal < 0 || Math.abs(this.#total - this.#levelTotal) > this.max / 100) {
      this.#level = levelOf([...this.#counts.values()], Math.min(this.max, this.#total - 1))
      this.#levelTotal = this.#total
    }
    return this.#level
  }
}
