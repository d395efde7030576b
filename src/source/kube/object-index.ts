import { isJson, type Json } from '../../model/fields.ts'

export interface Version {
  /** Empty when the server gives none. */
  readonly uid: string
  readonly resourceVersion: string
}

/** Reads the version of an object. Undefined without a resource version: its age is unknown. */
export function versionOf(object: unknown): Version | undefined {
  const { metadata } = isJson(object) ? object : {}
  return isJson(metadata) ? versionIn(metadata) : undefined
}

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

  /** With `backwards`, its age does not matter: time itself went back, as after a restored backup. */
  put(key: string, version: Version, backwards = false): PutVerdict {
    const verdict = this.#judge(key, version, backwards)
    if (verdict === 'older' || verdict === 'same') return verdict
    this.#held.set(key, version)
    this.#tombstones.delete(key)
    return verdict
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

  /** Keeps the names of the objects but forgets their versions, so that every object counts as changed. */
  forgetVersions(): void {
    for (const [key, { uid }] of this.#held) this.#held.set(key, { uid, resourceVersion: '' })
    this.forgetTombstones()
  }

  /** Holds the object no longer, although it exists. */
  forget(key: string): void {
    this.#held.delete(key)
  }

  #judge(key: string, version: Version, backwards: boolean): PutVerdict {
    const held = this.#held.get(key)
    if (held === undefined) {
      const deleted = this.#tombstones.get(key)?.resourceVersion
      const isOld = deleted !== undefined && isUpTo(version.resourceVersion, deleted)
      return isOld && !backwards ? 'older' : 'added'
    }
    if (!backwards && isOlder(version.resourceVersion, held.resourceVersion)) return 'older'
    if (!isSameObject(held, version)) return 'recreated'
    return held.resourceVersion === version.resourceVersion ? 'same' : 'changed'
  }

  #bury(key: string, version: Version): void {
    this.#held.delete(key)
    this.#tombstones.delete(key)
    this.#tombstones.set(key, version)
    for (const oldest of this.#tombstones.keys()) {
      if (this.#tombstones.size <= TOMBSTONES_MAX) break
      this.#tombstones.delete(oldest)
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

export function isPosition(version: string): boolean {
  return version !== '' && version !== '0'
}

/** The position of a watch at `position` that receives `heard`: it never goes back. */
export function advanced(position: string, heard: string): string {
  return !isPosition(heard) || isOlder(heard, position) ? position : heard
}
