import { type Clock, Pauses, type Steps } from '../../base/clock.ts'
import { WireError } from '../../base/errors.ts'
import {
  isRefusal,
  objectText,
  printable,
  type Refusal,
  type WatchedIdentity,
  type WatchedKind,
} from '../../model/fields.ts'
import { watchedIdentity } from '../../model/parse.ts'
import type { SourceEvent } from '../../model/snapshot.ts'
import {
  type Aged,
  agedIn,
  candidateOf,
  type ObjectCap,
  objectCapOf,
  partsIn,
  weightOf,
} from '../object-cap.ts'
import type { SourceObservation } from '../source.ts'
import type { Resource } from './api-client.ts'
import { type Change, type Identified, type Listed, Listing } from './listing.ts'
import { ObjectIndex, type PutVerdict, type Version, versionIn } from './object-index.ts'
import { isLeftOut } from './server-traits.ts'

/** Gives an event, a refusal of the whole object, or undefined for kinds that mean nothing here. */
export type ParseObject<E extends Change = SourceEvent> = (
  identity: WatchedIdentity,
) => E | Refusal | undefined

export type SkipReason = Extract<SourceObservation, { readonly kind: 'skipped' }>['reason']

interface ResourceChangesOptions<E extends Change> {
  readonly resource: Resource
  readonly clock: Pick<Clock, 'nowMs'>
  readonly parseObject: ParseObject<E>
  readonly deletion: (kind: WatchedKind, key: string) => E
  readonly skipped: (reason: SkipReason) => void
  /** Maximum parts of all objects of the source; undefined for no bound. */
  readonly partsMax?: number | undefined
}

interface LandOptions {
  readonly resourceVersion: string
  /** The result of `vanishing`. */
  readonly missing: readonly string[]
  /** Time went back: objects older than the held ones count, too. */
  readonly backwards: boolean
}

/**
 * Turns objects of one resource, from lists and watches, into changes: nothing goes back in time, no change is
 * delivered twice, and an unusable object deletes its earlier version. Objects beyond the cap are refused: see
 * ObjectCap. Holds the versions of objects, not the objects.
 */
export class ResourceChanges<E extends Change = SourceEvent> {
  readonly index = new ObjectIndex()
  readonly #options: ResourceChangesOptions<E>
  readonly #refusals = new Map<string, Refusal>()
  #refusalsChanged = false
  #listing: Listing<E> | undefined
  /** Counts the objects of the index; undefined for no bound. */
  #cap: ObjectCap | undefined
  /** Monotonic milliseconds of the next list for objects that were refused. */
  #roomMs = Number.NEGATIVE_INFINITY

  constructor(options: ResourceChangesOptions<E>) {
    this.#options = options
    this.#cap = this.#newCap()
  }

  #newCap(): ObjectCap | undefined {
    return objectCapOf(this.#options.resource.kind, this.#options.partsMax)
  }

  /** All that are refused now when that has changed since the last call; else undefined. */
  takeRefusals(): readonly Refusal[] | undefined {
    if (!this.#refusalsChanged) return undefined
    this.#refusalsChanged = false
    const beyond = [...(this.#cap?.refused ?? [])].map(([key, service]) => this.#beyondCap(key, service))
    // The cap's refusals come first, because readers name only the first ones.
    return [...beyond, ...this.#refusals.values()]
  }

  /** True when there is room for an object that was refused: the next list brings it, and counts as begun. */
  takeRoom(): boolean {
    const nowMs = this.#options.clock.nowMs()
    if (this.#cap?.hasRoom !== true || nowMs < this.#roomMs) return false
    // A list takes time for each object.
    this.#roomMs = nowMs + 30_000 + 5 * this.index.size
    return true
  }

  isBeyondCap(object: Aged): boolean {
    return this.#cap?.refuses(object) === true
  }

  /** Takes an ADDED or MODIFIED event: a duplicate changes nothing, and an unknown object is added. */
  put(identified: Identified): readonly E[] {
    const { key, version } = identified
    const cap = this.#cap
    if (cap?.isCut === true && cap.refuses(agedIn(identified))) {
      const isNew = cap.refuse(candidateOf(identified), () => partsIn(this.#parse(identified)))
      this.#refusalsChanged ||= isNew
      return []
    }
    const verdict = this.index.put(key, version)
    if (verdict === 'older') this.#options.skipped('older')
    if (verdict === 'older' || verdict === 'same') return []
    const parsed = this.#parse(identified)
    const news = this.#news(key, verdict, parsed)
    if (cap === undefined) return news
    cap.put(key, weightOf(identified, parsed))
    const overflow = cap.overflow()
    if (overflow.length === 0) return news
    this.#refusalsChanged = true
    for (const each of overflow) this.index.forget(each)
    return [...news, ...overflow.map(each => this.#gone(each))]
  }

  /** Takes a DELETED event, which changes nothing for an unknown object or a newer one of the same name. */
  remove({ key, version }: Identified): readonly E[] {
    const verdict = this.index.remove(key, version)
    if (verdict === 'older') this.#options.skipped('older')
    if (verdict === 'removed') this.#cap?.remove(key)
    if (verdict === 'unknown' && this.#cap?.unrefuse(key) === true) this.#refusalsChanged = true
    return verdict === 'removed' ? [this.#gone(key)] : []
  }

  skip(reason: SkipReason): void {
    this.#options.skipped(reason)
  }

  openListing(): Listing<E> {
    this.closeListing()
    this.#listing = new Listing({
      identify: object => this.#identifyListed(object),
      parse: identified => this.#parse(identified),
      held: key => this.index.get(key),
      weightHeld: key => this.#cap?.weightOf(key),
      cap: this.#newCap(),
    })
    return this.#listing
  }

  /** Nothing more arrives of the list, and its objects are gone or are counted elsewhere. */
  closeListing(): void {
    this.#listing = undefined
  }

  /** Objects held that the listing does not have. */
  *vanishing(listing: Listing<E>): Steps<string[]> {
    const missing: string[] = []
    const pauses = new Pauses()
    for (const key of this.index.keys()) {
      if (pauses.due()) yield
      if (!listing.has(key)) missing.push(key)
    }
    return missing
  }

  /** The listing is the state of everything. Nothing else may come in before it has ended. */
  *land(listing: Listing<E>, { resourceVersion, missing, backwards }: LandOptions): Steps<E[]> {
    const events: E[] = []
    this.#refusalsChanged ||= this.#cap?.isCut === true || listing.cap?.isCut === true
    this.#cap = listing.cap
    // An accepted list is newer than every delivered deletion: its objects exist, whatever an earlier list lacked.
    this.index.forgetTombstones()
    for (const key of missing) {
      this.index.removeUnlisted(key, resourceVersion)
      events.push(this.#gone(key))
    }
    const pauses = new Pauses()
    for (const listed of listing.items()) {
      if (pauses.due()) yield
      const { key, version } = listed
      const verdict = this.index.put(key, version, backwards)
      if (verdict === 'older') this.#options.skipped('older')
      else if (verdict !== 'same') events.push(...this.#news(key, verdict, listed.parsed))
    }
    return events
  }

  #beyondCap(key: string, service: string | undefined): Refusal {
    const { kind } = this.#options.resource
    const reason =
      `older ${kind}s fill the ${this.#cap?.partsMax ?? 0} parts (ports, addresses, endpoints) that this process may hold of them; ` +
      'it is ignored; delete some, or give the process a higher memory limit'
    const refusal = { object: objectText(kind, key), field: '', value: '', reason }
    return service === undefined ? refusal : { ...refusal, service }
  }

  /**
   * The absence of an object in a list deletes it, so that an item without an identity makes the list useless:
   * throws WireError.
   */
  #identifyListed(object: unknown): Identified | undefined {
    const { kind } = this.#options.resource
    const read = this.#read(object)
    if (read === 'wrong-kind') throw new WireError(`a list of ${kind}s with an item of another kind`)
    if (read === 'no-identity')
      throw new WireError(`a list of ${kind}s with an item that has no name or no resource version`)
    return this.#selected(read)
  }

  /** Undefined when the object is not one of this resource. */
  identify(object: unknown): Identified | undefined {
    const read = this.#read(object)
    if (typeof read !== 'string') return this.#selected(read)
    this.#options.skipped(read)
    return undefined
  }

  #read(object: unknown): Identified | 'wrong-kind' | 'no-identity' {
    const identity = watchedIdentity(object)
    if (identity?.kind !== this.#options.resource.kind) return 'wrong-kind'
    const version = versionIn(identity.metadata)
    return version === undefined || !isNamed(identity) ? 'no-identity' : identified(identity, version)
  }

  #selected(object: Identified): Identified | undefined {
    const { only } = this.#options.resource
    return only === undefined || object.key === only ? object : undefined
  }

  /** Parses one object; an exception becomes its refusal, so that others are still read. */
  #parse(identified: Identified): E | Refusal | undefined {
    const { parseObject, resource } = this.#options
    if (resource.kind === 'Service' && isLeftOut(resource, identified.root)) return undefined
    try {
      return parseObject(identified)
    } catch (error) {
      const { kind, key } = identified
      const reason = `cannot be read: ${printable(error instanceof Error ? error.message : error)}`
      return { object: objectText(kind, key), field: '', value: '', reason }
    }
  }

  #news(key: string, verdict: PutVerdict, parsed: Listed<E>['parsed']): readonly E[] {
    const before = verdict === 'added' ? [] : [this.#gone(key)]
    if (parsed === undefined) return before
    if (isRefusal(parsed)) {
      this.#refusals.set(key, parsed)
      this.#refusalsChanged = true
      return before
    }
    if (this.#refusals.delete(key)) this.#refusalsChanged = true
    return verdict === 'recreated' ? [...before, parsed] : [parsed]
  }

  #gone(key: string): E {
    if (this.#refusals.delete(key)) this.#refusalsChanged = true
    return this.#options.deletion(this.#options.resource.kind, key)
  }
}

/** A literal, which takes less time than a copy that is extended. */
function identified({ kind, key, root, metadata }: WatchedIdentity, version: Version): Identified {
  return { kind, key, root, metadata, version }
}

function isNamed({ kind, metadata: { name, namespace } }: WatchedIdentity): boolean {
  const isScoped = kind === 'Service' || kind === 'EndpointSlice'
  return isText(name) && (!isScoped || isText(namespace))
}

function isText(value: unknown): boolean {
  return typeof value === 'string' && value !== ''
}

export function deletion(kind: WatchedKind, key: string): SourceEvent {
  return { kind, key, value: undefined }
}
