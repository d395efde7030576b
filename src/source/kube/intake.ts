import { type Clock, finish, Pauses, type Steps } from '../../base/clock.ts'
import { WireError } from '../../base/errors.ts'
import {
  isRefusal,
  objectText,
  printable,
  type Refusal,
  type WatchedIdentity,
  type WatchedKind,
} from '../../model/fields.ts'
import { namespaceOf, ObjectShares } from '../../model/memory-shares.ts'
import {
  type CountedEvent,
  isCounted,
  NOTHING_HELD,
  OBJECT_PARTS,
  type PartsHolder,
  PartsLedger,
  type PartsRoom,
  RereadPace,
} from '../../model/object-budget.ts'
import { watchedIdentity } from '../../model/parse.ts'
import type { SourceEvent } from '../../model/snapshot.ts'
import type { SourceObservation } from '../source.ts'
import type { Resource } from './api-client.ts'
import { isOlder, ObjectIndex, type PutVerdict, type Version, versionIn } from './object-index.ts'
import { isLeftOut } from './server-traits.ts'

/** Gives an event, a refusal of the whole object, or undefined for kinds that mean nothing here. */
export type ParseObject<E extends Change = SourceEvent> = (
  identity: WatchedIdentity,
) => E | Refusal | undefined

/** What an object of a list or a watch becomes. */
export interface Change {
  readonly kind: string
}

export type SkipReason = Extract<SourceObservation, { readonly kind: 'skipped' }>['reason']

interface IntakeOptions<E extends Change> {
  readonly resource: Resource
  readonly clock: Pick<Clock, 'nowMs'>
  readonly parseObject: ParseObject<E>
  /** What the deletion of an object becomes. */
  readonly deletion: (kind: WatchedKind, key: string) => E
  /** An object was not used. */
  readonly skipped: (reason: SkipReason) => void
  /** Limits the objects that are held, and the new ones of a list that arrives; undefined for no bound. */
  readonly partsRoom?: PartsRoom | undefined
}

interface Identified extends WatchedIdentity {
  readonly version: Version
}

/** An object of a list; `parsed` is undefined when it stands as it did before. */
interface Listed<E extends Change> {
  readonly key: string
  readonly version: Version
  readonly parsed: E | CountedEvent | Refusal | undefined
}

interface LandOptions {
  readonly resourceVersion: string
  /** What `vanishing` gave. */
  readonly missing: readonly string[]
  /** Time went back: what is older than what is held counts all the same. */
  readonly backwards: boolean
}

/** Services and EndpointSlices. */
const COUNTED_RESOURCES = 2

/**
 * From objects of one resource, as lists and watches bring them, to what they change: nothing goes back in time,
 * no change is delivered twice, and an unusable object deletes its earlier version. Holds no objects, but
 * their versions.
 */
export class Intake<E extends Change = SourceEvent> {
  readonly index = new ObjectIndex()
  readonly #options: IntakeOptions<E>
  readonly #refusals = new Map<string, Refusal>()
  #refusalsChanged = false
  #listing: Listing<E> | undefined
  /** The objects of the index; undefined for no bound. */
  #shares: ObjectShares | undefined
  readonly #pace: RereadPace

  constructor(options: IntakeOptions<E>) {
    this.#options = options
    this.#pace = new RereadPace(options.clock)
    this.#shares = this.#newShares()
  }

  /** All that are refused now when that has changed since the last call; else undefined. */
  takeRefusals(): readonly Refusal[] | undefined {
    if (!this.#refusalsChanged) return undefined
    this.#refusalsChanged = false
    const namespaces = [...(this.#shares?.cut ?? [])].map(namespace => this.#cutOf(namespace))
    // Readers name the first ones.
    return [...namespaces, ...this.#refusals.values()]
  }

  /** True when there is room for objects that were left out: the next list brings them, and counts as begun. */
  takeRoom(): boolean {
    if (this.#shares?.hasRoom !== true || this.#pace.waitMs > 0) return false
    this.#pace.began(this.index.size)
    return true
  }

  /** Whether the object is not known because its namespace has too many. */
  isLeftOut(key: string): boolean {
    return this.#shares?.isCutAt(key) === true && this.index.get(key) === undefined
  }

  /** An ADDED (`isNew`) or MODIFIED event: a duplicate says nothing, and one of an unknown object adds it. */
  put(identified: Identified, isNew: boolean): readonly (E | CountedEvent)[] {
    const { key, version } = identified
    if (this.index.get(key) === undefined && this.#shares?.admits(key) === false) {
      if (isNew) this.#countLeftOut(key, 1)
      return []
    }
    const verdict = this.index.put(key, version)
    if (verdict === 'added') this.#shares?.added(key)
    if (verdict === 'older') this.#options.skipped('older')
    if (verdict === 'older' || verdict === 'same') return []
    return this.#news(key, verdict, this.#parse(identified))
  }

  /** A DELETED event: it says nothing about an unknown object, nor about a newer one of the same name. */
  remove({ key, version }: Identified): readonly E[] {
    const verdict = this.index.remove(key, version)
    if (verdict === 'older') this.#options.skipped('older')
    if (verdict === 'removed') this.#shares?.removed(key)
    if (verdict === 'unknown') this.#countLeftOut(key, -1)
    return verdict === 'removed' ? [this.#gone(key)] : []
  }

  /** An event was not used. */
  skip(reason: SkipReason): void {
    this.#options.skipped(reason)
  }

  /** Opens a list in place of an earlier one. */
  openListing(): Listing<E> {
    this.closeListing()
    this.#listing = new Listing({
      identify: object => this.#identifyListed(object),
      parse: identified => this.#parse(identified),
      held: key => this.index.get(key),
      partsRoom: this.#options.partsRoom,
      shares: this.#shares?.copy(),
    })
    return this.#listing
  }

  /** Nothing more arrives of the list, and its objects are gone or are counted elsewhere. */
  closeListing(): void {
    this.#listing?.close()
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
  *land(
    listing: Listing<E>,
    { resourceVersion, missing, backwards }: LandOptions,
  ): Steps<(E | CountedEvent)[]> {
    const events: (E | CountedEvent)[] = []
    yield* listing.trim()
    this.#refusalsChanged ||= this.#shares?.isCut === true || listing.shares?.isCut === true
    this.#shares = listing.shares
    if (this.#shares?.isCut === false) this.#pace.reset()
    // An accepted list is newer than every delivered deletion: its objects exist, whatever an earlier list lacked.
    this.index.forgetTombstones()
    for (const key of missing) {
      this.index.removeUnlisted(key, resourceVersion)
      this.#shares?.removed(key)
      events.push(this.#gone(key))
    }
    const pauses = new Pauses()
    for (const listed of listing.items()) {
      if (pauses.due()) yield
      const { key, version } = listed
      const verdict = backwards ? this.index.overwrite(key, version) : this.index.put(key, version)
      if (verdict === 'older') this.#options.skipped('older')
      else if (verdict !== 'same') events.push(...this.#news(key, verdict, listed.parsed))
    }
    return events
  }

  /** Half of the parts are for empty objects of this resource. */
  #newShares(): ObjectShares | undefined {
    const { partsRoom, resource } = this.#options
    const isTenants = resource.kind === 'Service' || resource.kind === 'EndpointSlice'
    if (partsRoom === undefined || !isTenants) return undefined
    return new ObjectShares(partsRoom.partsMax / COUNTED_RESOURCES / OBJECT_PARTS)
  }

  #countLeftOut(key: string, by: 1 | -1): void {
    const shares = this.#shares
    const was = shares?.isCutAt(key)
    if (by > 0) shares?.leftOut(key)
    else shares?.leftOutRemoved(key)
    if (was !== shares?.isCutAt(key)) this.#refusalsChanged = true
  }

  #cutOf(namespace: string): Refusal {
    const kinds = `${this.#options.resource.kind}s`
    const max = Math.floor(this.#shares?.max ?? 0)
    const reason =
      `has its share of the ${max} ${kinds} that this process may hold; further ${kinds} of the namespace are ignored; ` +
      'delete some, or give the process a higher memory limit'
    return { object: `Namespace ${namespace}`, field: '', value: '', reason }
  }

  /**
   * The absence of an object in a list deletes it, so that an item without an identity makes the list useless:
   * throws WireError.
   */
  #identifyListed(object: unknown): Identified | undefined {
    const { kind } = this.#options.resource
    const identity = watchedIdentity(object)
    if (identity?.kind !== kind) throw new WireError(`a list of ${kind}s with an item of another kind`)
    const version = versionIn(identity.metadata)
    if (version === undefined || !isNamed(identity))
      throw new WireError(`a list of ${kind}s with an item that has no name or no resource version`)
    return this.#selected(identified(identity, version))
  }

  /** Undefined when the object is not one of this resource. */
  identify(object: unknown): Identified | undefined {
    const { resource, skipped } = this.#options
    const identity = watchedIdentity(object)
    if (identity?.kind !== resource.kind) {
      skipped('wrong-kind')
      return undefined
    }
    const version = versionIn(identity.metadata)
    if (version === undefined) {
      skipped('no-identity')
      return undefined
    }
    return this.#selected(identified(identity, version))
  }

  #selected(object: Identified): Identified | undefined {
    const { only } = this.#options.resource
    return only === undefined || object.key === only ? object : undefined
  }

  /** What an object says; a fault in reading it is its own, and does not keep others from being read. */
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

  #news(key: string, verdict: PutVerdict, parsed: Listed<E>['parsed']): readonly (E | CountedEvent)[] {
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

interface ListingOptions<E extends Change> {
  readonly identify: (object: unknown) => Identified | undefined
  readonly parse: (identified: Identified) => E | Refusal | undefined
  readonly held: (key: string) => Version | undefined
  readonly partsRoom: PartsRoom | undefined
  readonly shares: ObjectShares | undefined
}

/** A list while it arrives; changes nothing before it lands. Leaves out objects that do not fit into memory. */
export class Listing<E extends Change = SourceEvent> implements PartsHolder {
  readonly #options: ListingOptions<E>
  readonly #items = new Map<string, Listed<E>>()
  #leftOut = 0
  readonly #ledger: PartsLedger | undefined

  constructor(options: ListingOptions<E>) {
    this.#options = options
    const room = options.partsRoom
    this.#ledger =
      room === undefined ? undefined : new PartsLedger(room.partsMax, NOTHING_HELD, () => room.limitOf(this))
    room?.enter(this)
  }

  close(): void {
    this.#options.partsRoom?.leave(this)
  }

  get parts(): number {
    return this.#ledger?.held ?? 0
  }

  get size(): number {
    return this.#items.size
  }

  /** Grows with each object that was not there before, also where there is no room for it. */
  get arrived(): number {
    return this.#items.size + this.#leftOut
  }

  /** The objects of the list; undefined for no bound. */
  get shares(): ObjectShares | undefined {
    return this.#options.shares
  }

  has(key: string): boolean {
    return this.#items.has(key)
  }

  items(): Iterable<Listed<E>> {
    return this.#items.values()
  }

  take(object: unknown): void {
    const identified = this.#options.identify(object)
    if (identified === undefined) return
    const { key, version } = identified
    const twin = this.#items.get(key)
    if (twin !== undefined && isOlder(version.resourceVersion, twin.version.resourceVersion)) return
    const { shares } = this.#options
    const held = this.#options.held(key)
    // An object that is held is counted, and stays: its absence would delete it.
    if (twin === undefined && held === undefined) {
      if (shares?.admits(key) === false) {
        this.#leftOut++
        shares.leftOut(key)
        return
      }
      shares?.added(key)
    }
    const stands = held?.uid === version.uid && held.resourceVersion === version.resourceVersion
    const parsed = stands ? undefined : this.#options.parse(identified)
    this.#items.set(key, { key, version, parsed })
    this.#count(parsed, twin?.parsed)
  }

  #count(parsed: Listed<E>['parsed'], before: Listed<E>['parsed']): void {
    const ledger = this.#ledger
    const was = countedIn(before)
    const event = countedIn(parsed) ?? (was === undefined ? undefined : { ...was, value: undefined })
    if (ledger === undefined || event === undefined) return
    ledger.put(event, was?.value)
    if (!ledger.isOver) return
    for (const stub of finish(ledger.reduce(this.#counted()))) {
      const listed = this.#items.get(stub.key)
      if (listed !== undefined) this.#items.set(stub.key, { ...listed, parsed: stub })
    }
  }

  *#counted(): Generator<CountedEvent> {
    for (const { parsed } of this.#items.values()) {
      const event = countedIn(parsed)
      if (event !== undefined) yield event
    }
  }

  /** Leaves out new objects of namespaces that got more than their share because they were listed first. */
  *trim(): Steps<void> {
    const { shares, held } = this.#options
    const level = shares?.isCut === true ? shares.fairLevel : Number.POSITIVE_INFINITY
    if (shares === undefined || !Number.isFinite(level)) return
    const kept = new Map<string, number>()
    const isKept = (key: string): boolean => {
      const namespace = namespaceOf(key)
      const count = (kept.get(namespace) ?? 0) + 1
      kept.set(namespace, count)
      return count <= level
    }
    for (const key of this.#items.keys()) if (held(key) !== undefined) isKept(key)
    yield
    for (const key of [...this.#items.keys()]) {
      if (held(key) !== undefined || isKept(key)) continue
      this.#items.delete(key)
      shares.removed(key)
      shares.leftOut(key)
    }
  }

  /** It was deleted while a streaming list was under way. */
  drop(object: unknown): void {
    const identified = this.#options.identify(object)
    if (identified === undefined) return
    const { key, version } = identified
    const twin = this.#items.get(key)
    if (twin !== undefined && isOlder(version.resourceVersion, twin.version.resourceVersion)) return
    const isHeld = this.#options.held(key) !== undefined
    if (this.#items.delete(key) && !isHeld) this.#options.shares?.removed(key)
    this.#count(undefined, twin?.parsed)
  }
}

/** A literal, which takes less time than a copy that is extended. */
function identified({ kind, key, root, metadata }: WatchedIdentity, version: Version): Identified {
  return { kind, key, root, metadata, version }
}

function countedIn(parsed: Change | Refusal | undefined): CountedEvent | undefined {
  return parsed !== undefined && !isRefusal(parsed) && isCounted(parsed) ? parsed : undefined
}

function isNamed({ kind, metadata: { name, namespace } }: WatchedIdentity): boolean {
  const isScoped = kind === 'Service' || kind === 'EndpointSlice'
  return isText(name) && (!isScoped || isText(namespace))
}

function isText(value: unknown): boolean {
  return typeof value === 'string' && value !== ''
}

/** The event of an object that is gone. */
export function deletion(kind: WatchedKind, key: string): SourceEvent {
  return { kind, key, value: undefined }
}
