import { type Cancel, type Clock, runWithin } from '../../base/clock.ts'
import { WireError } from '../../base/errors.ts'
import { isJson } from '../../model/fields.ts'
import { namespaceOf } from '../../model/memory-shares.ts'
import { type Exchange, type Failure, failureOfError } from './exchange.ts'
import { isOlder, type ObjectIndex, type Version, versionOf } from './object-index.ts'
import { type Resource, requestPath } from './resources.ts'

interface ConsistencyCheckOptions {
  readonly resource: Resource
  readonly exchange: Exchange
  readonly clock: Clock
  readonly random: () => number
  /** Mean distance between checks, milliseconds; more where there are many objects. */
  readonly periodMs: number
  readonly index: ObjectIndex
  /** Tests whether an object is not in the index for want of room. */
  readonly isLeftOut: (key: string) => boolean
  /** How far the watch is; undefined while there is none. */
  readonly position: () => string | undefined
  /** Number of objects that differ from what events delivered. */
  readonly lost: (objects: number) => void
  /** How the last check went; undefined when it could be made. */
  readonly ended: (failure: Failure | undefined) => void
}

/** Checks spread over the period, so that not all nodes ask at once. */
const SPREAD = 0.4
/** So long for each object: every node asks, and a server with 5,000 of them then lists 5,000 objects a second. */
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
  #wake: () => void = () => undefined
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
    this.#wake()
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

  /** How many objects differ for certain. */
  async #compare(): Promise<number> {
    const { index, isLeftOut, position } = this.#options
    const comparison = new Comparison(index, isLeftOut)
    const listVersion = await this.#list(comparison)
    if (comparison.end() === 0) return 0
    for (let waitedMs = 0; waitedMs < PASSING_MS_MAX; waitedMs += PASSING_POLL_MS) {
      const at = position()
      if (at === undefined || comparison.confirmed(listVersion) === 0) return 0
      if (at === listVersion || isOlder(listVersion, at)) break
      await this.#sleep(PASSING_POLL_MS)
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
    const path = requestPath(resource, { limit: PAGE_OBJECTS, continue: token })
    return await runWithin(clock, { limitMs: REQUEST_MS_MAX, signal: this.#stop.signal }, signal =>
      exchange.metadata({ kind: resource.kind, path, signal }),
    )
  }

  #take(comparison: Comparison, item: unknown): void {
    const { resource } = this.#options
    const { metadata } = isJson(item) ? item : {}
    const { namespace, name } = isJson(metadata) ? metadata : {}
    const version = versionOf(item)
    if (version === undefined || typeof name !== 'string') return
    const key = typeof namespace === 'string' ? `${namespace}/${name}` : name
    if (resource.only === undefined || resource.only === key) comparison.take(key, version)
  }

  #sleep(ms: number): Promise<void> {
    return new Promise(resolve => {
      const cancel = this.#options.clock.after(ms, resolve)
      this.#wake = () => {
        cancel()
        resolve()
      }
    })
  }
}

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
