import { type Cancel, type Clock, pause, runWithin } from '../../base/clock.ts'
import { WireError } from '../../base/errors.ts'
import { isJson } from '../../model/fields.ts'
import { type Aged, bornSIn } from '../object-cap.ts'
import { type Resource, requestPath } from './api-client.ts'
import { type Exchange, LIST_MS_MAX, type Opening, PAGES_MAX } from './exchange.ts'
import { type Failure, FailureError, failureOfError } from './failure.ts'
import { isOlder, type ObjectIndex, type Version, versionIn } from './object-index.ts'
import { servedResource } from './server-traits.ts'

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
/** Events that are under way get so many seconds to arrive. */
const PASSING_S = 30

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
    for (let second = 0; second < PASSING_S; second++) {
      const at = position()
      if (at === undefined || comparison.confirmed(listVersion) === 0) return 0
      if (at === listVersion || isOlder(listVersion, at)) break
      await pause(this.#options.clock, 1_000, this.#stop.signal)
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
    const { resource, exchange, clock } = this.#options
    const path = requestPath(servedResource(resource, exchange.traits), {
      limit: PAGE_OBJECTS,
      continue: token,
    })
    return await runWithin(clock, { limitMs: LIST_MS_MAX, signal: this.#stop.signal }, signal =>
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
