import type { Clock } from '../../base/clock.ts'
import { isJson } from '../../model/fields.ts'
import type { WholeList } from './exchange.ts'
import type { Change, Listing } from './listing.ts'
import { advanced, versionOf } from './object-index.ts'
import type { Outcome } from './reflector-state.ts'
import type { ResourceChanges } from './resource-changes.ts'
import type { ApiObject, WatchEvent } from './wire/tables.ts'

interface WatchRunOptions<E extends Change> {
  readonly clock: Clock
  /** The version from which it watches. */
  readonly position: string
  /** Takes what comes until the list that it begins with is whole. */
  readonly listing: Listing<E> | undefined
}

const NOTHING: readonly never[] = []
const END_ANNOTATION = 'k8s.io/initial-events-end'

export class WatchRun<E extends Change> {
  readonly beganMs: number
  events = 0
  bytes = 0
  /** The changes since the last call of takeNews are taken; undefined when there are none. */
  taken: Promise<void> | undefined
  readonly #clock: Clock
  #listing: Listing<E> | undefined
  #growingMs: number
  #position: string
  #toldPosition: string
  #heard = false
  #hasProgressed = false

  constructor({ clock, position, listing }: WatchRunOptions<E>) {
    this.#clock = clock
    this.beganMs = clock.nowMs()
    this.#growingMs = this.beganMs
    this.#listing = listing
    this.#position = position
    this.#toldPosition = position
  }

  /** Undefined once it is whole, or when there was none. */
  get listing(): Listing<E> | undefined {
    return this.#listing
  }

  /** Monotonic milliseconds of the last object that the list did not have before. */
  get growingMs(): number {
    return this.#growingMs
  }

  /** True when the list is whole. */
  takeInitial(listing: Listing<E>, { type, object }: WatchEvent): boolean {
    const before = listing.arrived
    if (type === 'ADDED' || type === 'MODIFIED') listing.take(object)
    else if (type === 'DELETED') listing.drop(object)
    if (listing.arrived > before) this.#growingMs = this.#clock.nowMs()
    return type === 'BOOKMARK' && isEndOfInitialEvents(object)
  }

  /** `bookmark` ended it; what comes from now on are changes. */
  endListing(listing: Listing<E>, { object: bookmark }: WatchEvent): WholeList<Listing<E>> {
    this.#listing = undefined
    this.#hasProgressed = true
    const resourceVersion = versionOf(bookmark)?.resourceVersion ?? ''
    // A list has its objects in any order, so that none of them gives the position of the watch.
    this.#position = resourceVersion
    this.#toldPosition = resourceVersion
    return { listing, resourceVersion, bytes: this.bytes }
  }

  /** Gives the changes that an event makes once the list is whole. */
  takeLive({ type, object }: WatchEvent, intake: ResourceChanges<E>): readonly E[] {
    switch (type) {
      case 'ADDED':
      case 'MODIFIED':
      case 'DELETED': {
        const identified = intake.identify(object)
        if (identified === undefined) return NOTHING
        this.#delivered(identified.version.resourceVersion)
        return type === 'DELETED' ? intake.remove(identified) : intake.put(identified)
      }
      case 'BOOKMARK':
        this.#delivered(versionOf(object)?.resourceVersion ?? '')
        return NOTHING
      default:
        intake.skip('unknown-type')
        return NOTHING
    }
  }

  #delivered(resourceVersion: string): void {
    this.#heard = true
    this.#position = advanced(this.#position, resourceVersion)
  }

  /** Gives the news since the last call. `heard`: an event was readable; `progress`: it was new. */
  takeNews() {
    const { taken } = this
    const position = this.#position
    const progress = taken !== undefined || position !== this.#toldPosition
    const news = { heard: this.#heard, progress, position, taken }
    this.#hasProgressed ||= progress
    this.#heard = false
    this.#toldPosition = position
    this.taken = undefined
    return news
  }

  ended(why = 'it was closed'): Outcome {
    if (this.#listing !== undefined) return { kind: 'cut', text: `a streaming list broke off: ${why}` }
    return { kind: 'ended', livedMs: this.#clock.nowMs() - this.beganMs, progress: this.#hasProgressed }
  }
}

function isEndOfInitialEvents({ metadata }: ApiObject): boolean {
  const { annotations } = isJson(metadata) ? metadata : {}
  return isJson(annotations) && annotations[END_ANNOTATION] === 'true'
}

/** Gives the length of a watch, seconds: spread, so that thousands of them do not end together. */
export function watchSeconds(random: () => number): number {
  return 300 + Math.floor(300 * random())
}

export function watchQuery(position: string, seconds: number): Readonly<Record<string, string>> {
  return {
    watch: '1',
    allowWatchBookmarks: 'true',
    resourceVersion: position,
    timeoutSeconds: String(seconds),
  }
}

/** A watch that begins with a list (KEP-3157), of now when no version is known. */
export function streamingQuery(position: string, seconds: number): Readonly<Record<string, string>> {
  return {
    ...watchQuery(position, seconds),
    sendInitialEvents: 'true',
    resourceVersionMatch: 'NotOlderThan',
  }
}
