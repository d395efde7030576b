import type { Clock } from '../../base/clock.ts'
import { isJson } from '../../model/fields.ts'
import type { SourceEvent } from '../../model/snapshot.ts'
import type { Intake, Listing } from './intake.ts'
import { versionOf } from './object-index.ts'
import type { WholeList } from './pages.ts'
import type { Outcome } from './reflector-state.ts'
import { advanced } from './resource-version.ts'
import type { ApiObject, WatchEvent } from './wire/reader.ts'

interface WatchRunOptions {
  readonly clock: Clock
  /** The version from which it watches. */
  readonly position: string
  /** Takes what comes until the list that it begins with is whole. */
  readonly listing: Listing | undefined
}

const NOTHING: readonly SourceEvent[] = []
const END_ANNOTATION = 'k8s.io/initial-events-end'

/** How far one stream of watch events has come. */
export class WatchRun {
  readonly beganMs: number
  events = 0
  bytes = 0
  /** The changes since the last call of takeNews are taken; undefined when there are none. */
  taken: Promise<void> | undefined
  readonly #clock: Clock
  #listing: Listing | undefined
  #growingMs: number
  #position: string
  #toldPosition: string
  #heard = false
  #hasProgressed = false

  constructor({ clock, position, listing }: WatchRunOptions) {
    this.#clock = clock
    this.beganMs = clock.nowMs()
    this.#growingMs = this.beganMs
    this.#listing = listing
    this.#position = position
    this.#toldPosition = position
  }

  /** Undefined once it is whole, or when there was none. */
  get listing(): Listing | undefined {
    return this.#listing
  }

  /** Monotonic milliseconds of the last object that the list did not have before. */
  get growingMs(): number {
    return this.#growingMs
  }

  /** True when the list is whole. */
  takeInitial(listing: Listing, { type, object }: WatchEvent): boolean {
    const before = listing.arrived
    if (type === 'ADDED' || type === 'MODIFIED') listing.take(object)
    else if (type === 'DELETED') listing.drop(object)
    if (listing.arrived > before) this.#growingMs = this.#clock.nowMs()
    return type === 'BOOKMARK' && isEndOfInitialEvents(object)
  }

  /** `bookmark` ended it; what comes from now on are changes. */
  endListing(listing: Listing, { object: bookmark }: WatchEvent): WholeList {
    this.#listing = undefined
    this.#hasProgressed = true
    const resourceVersion = versionOf(bookmark)?.resourceVersion ?? ''
    // Objects of the list come in any order: none of them says how far the watch is.
    this.#position = resourceVersion
    this.#toldPosition = resourceVersion
    return { listing, resourceVersion, bytes: this.bytes }
  }

  /** Gives the changes that an event makes once the list is whole. */
  takeLive({ type, object }: WatchEvent, intake: Intake): readonly SourceEvent[] {
    switch (type) {
      case 'ADDED':
      case 'MODIFIED':
      case 'DELETED': {
        const identified = intake.identify(object)
        if (identified === undefined) return NOTHING
        this.#delivered(identified.version.resourceVersion)
        return type === 'DELETED' ? intake.remove(identified) : intake.put(identified, type === 'ADDED')
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

  /**
   * What has come since the last call: whether anything can be understood (`heard`), whether anything was not known
   * (`progress`), and the position.
   */
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

  /** The stream is over. */
  ended(why = 'it was closed'): Outcome {
    if (this.#listing !== undefined) return { kind: 'cut', text: `a streaming list broke off: ${why}` }
    return { kind: 'ended', livedMs: this.#clock.nowMs() - this.beganMs, progress: this.#hasProgressed }
  }
}

function isEndOfInitialEvents({ metadata }: ApiObject): boolean {
  const { annotations } = isJson(metadata) ? metadata : {}
  return isJson(annotations) && annotations[END_ANNOTATION] === 'true'
}
