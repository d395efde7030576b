import { type Cancel, type Clock, pause, runWithin } from '../../base/clock.ts'
import { WireError } from '../../base/errors.ts'
import { isJson, type Json } from '../../model/fields.ts'
import { type Aged, bornSIn } from '../object-cap.ts'
import { type Resource, requestPath } from './api-client.ts'
import { type Exchange, type Failure, FailureError, failureOfError, type Opening } from './exchange.ts'
import { type ServerTraits, servedResource } from './server-traits.ts'

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

  /** Keeps the names of the objects but forgets their versions, so that every object counts as changed. */
  forgetVersions(): void {
    for (const [key, { uid }] of this.#held) this.#held.set(key, { uid, resourceVersion: '' })
    this.forgetTombstones()
  }

  /** Holds the object no longer, although it exists. */
  forget(key: string): void {
    this.#held.delete(key)
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

export function isPosition(version: string): boolean {
  return version !== '' && version !== '0'
}

/** The position of a watch at `position` that receives `heard`: it never goes back. */
export function advanced(position: string, heard: string): string {
  return !isPosition(heard) || isOlder(heard, position) ? position : heard
}

/**
 * Tests whether the server is at an older revision than this one. A server whose store was restored would let a watch
 * that begins in its future wait without a word. False where it does not say: relays compare by themselves.
 */
export async function isBehind(exchange: Exchange, opening: Opening, position: string): Promise<boolean> {
  try {
    return isOlder((await exchange.metadata(opening)).resourceVersion, position)
  } catch (error) {
    if (error instanceof FailureError) return false
    throw error
  }
}

interface ConsistencyCheckOptions {
  readonly resource: Resource
  readonly exchange: Exchange
  readonly traits: ServerTraits
  readonly clock: Clock
  readonly random: () => number
  /** Mean distance between checks, milliseconds; more where there are many objects. */
  readonly periodMs: number
  readonly index: ObjectIndex
  /** Tests whether an object is not in the index because there is no room for it. */
  readonly isBeyondCap: (object: Aged) => boolean
  /** The position of the watch; undefined while there is none. */
  readonly position: () => string | undefined
  /** Number of objects that differ from what events delivered. */
  readonly lost: (objects: number) => void
  /** Gets the failure of the last check; undefined when it was made. */
  readonly ended: (failure: Failure | undefined) => void
}

/** Checks spread over the period, so that not all nodes ask at once. */
const SPREAD = 0.4
/** The time between checks grows by this for each object, so that 5,000 nodes together list 5,000 objects a second. */
const OBJECT_MS = 1_000
const PAGE_OBJECTS = '250'
/** Events that are under way get this long to arrive. */
const PASSING_MS_MAX = 30_000
const PASSING_POLL_MS = 1_000
const REQUEST_MS_MAX = 300_000
const PAGES_MAX = 10_000

/**
 * Watches have been seen to lose events (etcd #17529, #18089, #20221). Now and then the versions of all objects are
 * listed, without the objects, and compared with what is held.
 */
export class ConsistencyCheck {
  readonly #options: ConsistencyCheckOptions
  readonly #stop = new AbortController()
  #cancel: Cancel | undefined
  /** The time at which the last whole check began, or the first could have. */
  #checkedMs: number
  #running: Promise<void> | undefined

  constructor(options: ConsistencyCheckOptions) {
    this.#options = options
    this.#checkedMs = options.clock.nowMs()
  }

  start(): void {
    const { clock, periodMs, random } = this.#options
    this.#cancel = clock.after(periodMs * (1 + SPREAD * (random() - 0.5)), () => {
      this.#running = this.#run().then(() => {
        this.#running = undefined
        if (!this.#stop.signal.aborted) this.start()
      })
    })
  }

  async stop(): Promise<void> {
    this.#stop.abort()
    this.#cancel?.()
    await this.#running
  }

  async #run(): Promise<void> {
    const { clock, index, position, lost, ended } = this.#options
    const nowMs = clock.nowMs()
    if (position() === undefined || nowMs - this.#checkedMs < index.size * OBJECT_MS) return
    try {
      const objects = await this.#compare()
      if (this.#stop.signal.aborted) return
      this.#checkedMs = nowMs
      ended(undefined)
      if (objects > 0) lost(objects)
    } catch (error) {
      if (!this.#stop.signal.aborted) ended(failureOfError(error))
    }
  }

  /** Counts the objects that differ for certain. */
  async #compare(): Promise<number> {
    const { index, isBeyondCap, position } = this.#options
    const comparison = new Comparison(index, isBeyondCap)
    const before = position()
    const listVersion = await this.#list(comparison)
    // The list is consistent: a revision before that of the watch is that of a store that was restored.
    if (before !== undefined && isOlder(listVersion, before)) return 1
    if (comparison.end() === 0) return 0
    for (let waitedMs = 0; waitedMs < PASSING_MS_MAX; waitedMs += PASSING_POLL_MS) {
      const at = position()
      if (at === undefined || comparison.confirmed(listVersion) === 0) return 0
      if (at === listVersion || isOlder(listVersion, at)) break
      await pause(this.#options.clock, PASSING_POLL_MS, this.#stop.signal)
      if (this.#stop.signal.aborted) return 0
    }
    return position() === undefined ? 0 : comparison.confirmed(listVersion)
  }

  async #list(comparison: Comparison): Promise<string> {
    let token = ''
    let version: string | undefined
    for (let pages = 0; pages < PAGES_MAX; pages++) {
      const page = await this.#page(token)
      for (const item of page.items) this.#take(comparison, item)
      version ??= page.resourceVersion
      token = page.continue
      if (token === '') return version
    }
    throw new WireError(`a list of more than ${PAGES_MAX} pages`)
  }

  async #page(token: string): Promise<Awaited<ReturnType<Exchange['metadata']>>> {
    const { resource, exchange, traits, clock } = this.#options
    const path = requestPath(servedResource(resource, traits), { limit: PAGE_OBJECTS, continue: token })
    return await runWithin(clock, { limitMs: REQUEST_MS_MAX, signal: this.#stop.signal }, signal =>
      exchange.metadata({ kind: resource.kind, path, signal }),
    )
  }

  #take(comparison: Comparison, item: unknown): void {
    const { resource } = this.#options
    const { metadata } = isJson(item) ? item : {}
    if (!isJson(metadata)) return
    const { namespace, name } = metadata
    const version = versionIn(metadata)
    if (version === undefined || typeof name !== 'string') return
    const key = typeof namespace === 'string' ? `${namespace}/${name}` : name
    if (resource.only !== undefined && resource.only !== key) return
    comparison.take({ key, bornS: bornSIn(metadata) }, version)
  }
}

/** The state of an object in the server's list, with the time of its creation. */
type Listed = Version & Omit<Aged, 'key'>

/**
 * Compares the server's list with the state that its events gave. A list and a watch are never at the same point, so
 * that what differs is only suspected at first, and judged again once the watch has passed the list.
 */
export class Comparison {
  readonly #index: ObjectIndex
  readonly #isBeyondCap: (object: Aged) => boolean
  readonly #seen = new Set<string>()
  readonly #suspects = new Map<string, Listed | undefined>()

  /** `isBeyondCap` tests whether an object is not in the index because there is no room for it. */
  constructor(index: ObjectIndex, isBeyondCap: (object: Aged) => boolean) {
    this.#index = index
    this.#isBeyondCap = isBeyondCap
  }

  take(object: Aged, version: Version): void {
    const { key } = object
    const held = this.#index.get(key)
    this.#seen.add(key)
    if (held === undefined && this.#isBeyondCap(object)) return
    if (held?.uid !== version.uid || held.resourceVersion !== version.resourceVersion)
      this.#suspects.set(key, { ...version, bornS: object.bornS })
  }

  /** The list is whole. Gives how many objects differ. */
  end(): number {
    for (const key of this.#index.keys()) if (!this.#seen.has(key)) this.#suspects.set(key, undefined)
    this.#seen.clear()
    return this.#suspects.size
  }

  /** Counts those that still differ, other than by being newer than the list of this version. */
  confirmed(listVersion: string): number {
    let lost = 0
    for (const [key, listed] of this.#suspects) if (this.#isLost(key, listed, listVersion)) lost++
    return lost
  }

  #isLost(key: string, listed: Listed | undefined, listVersion: string): boolean {
    const held = this.#index.get(key)
    if (listed === undefined) return held !== undefined && !isOlder(listVersion, held.resourceVersion)
    if (held === undefined) {
      if (this.#isBeyondCap({ key, bornS: listed.bornS })) return false
      const tombstone = this.#index.tombstone(key)
      return tombstone === undefined || !isOlder(listVersion, tombstone.resourceVersion)
    }
    const isEqual = held.uid === listed.uid && held.resourceVersion === listed.resourceVersion
    return !isEqual && !isOlder(listed.resourceVersion, held.resourceVersion)
  }
}
