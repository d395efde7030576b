import { framed } from '../api/grpc/rpc.ts'
import { type Clock, Slice, slicingOf } from '../base/clock.ts'
import { compareVersions, isOlder } from '../source/kube/object-index.ts'
import { type CollectionReader, CollectionSnapshot, type Entry, Frame, framesIn, Receipt } from './frames.ts'
import { discovery } from './schema.ts'

/** Changes that were published together. The last frame bears the revision. */
interface Publication {
  readonly revision: string
  readonly frames: readonly Frame[]
  readonly bytes: number
  /**
   * The revision before a list. Its changes that undid each other are unknown: a reader between the two revisions
   * cannot go on.
   */
  readonly gapFrom: string | undefined
}

/** A change as the API server sent it. */
export interface Change {
  readonly revision: string
  readonly name: string
  readonly entry: Entry | undefined
}

/** A source delivers each change, also undone ones; the net difference of a list; or another history. */
type Told = 'changes' | 'difference' | 'another-history'

interface CollectionOptions {
  readonly typeUrl: string
  readonly clock: Clock
  /** Processor time of this process, in milliseconds. */
  readonly cpuMs: () => number
  /** Minimum time between two publications, when the process took so much processor time since the first; milliseconds. */
  readonly spacingMs: (cpuMs: number) => number
  /** The identity of the cluster, as every response bears it. */
  readonly identifier: () => string
  readonly historyBytesMax?: number
}

/** Resources of one response. gRPC clients take 4 MiB; an object has up to 1.5 MiB. */
const RESPONSE_BYTES_MAX = 256 * 1024
const HISTORY_BYTES_MAX = 32 * 1024 * 1024
const HISTORY_MAX = 16_384
/** Whole states that exist at a time, each for readers that are not through yet. */
const SNAPSHOTS_MAX = 3
/**
 * Thousands of readers are told in one go: what a second slice writes, node:http2 keeps until the event loop has read the
 * acknowledgements of the first one.
 */
const TELLING_SLICE_MS = 50
/** Changes of the time before the first list that one publication has. */
const PREPENDED_CHANGES = 100

/**
 * The objects of one type, and the changes of the recent past as responses that were encoded once. A reader has one position
 * in that history, and no queue. A position is a number of publications since the start.
 */
export class Collection {
  readonly typeUrl: string
  readonly #options: CollectionOptions
  readonly #state = new Map<string, Entry>()
  readonly #pending = new Map<string, Entry | undefined>()
  readonly #readers = new Set<CollectionReader>()
  #publications: Publication[] = []
  /** The position of the first publication that is kept; may fall below zero. */
  #first = 0
  #historyBytes = 0
  /** Readers at this revision, or a later one, can go on. */
  #floor = ''
  #revision: string | undefined
  #sealed: string | undefined
  /** Revisions up to this one may be of the present history, or of the one before a restore. */
  #wentBackFrom: string | undefined
  #snapshot: CollectionSnapshot | undefined
  /** Snapshots that are no longer given out, and have readers. */
  #earlier: readonly CollectionSnapshot[] = []
  #bookmark: Frame | undefined
  #publishedMs = Number.NEGATIVE_INFINITY
  /** Processor time of the process at the last publication. */
  #publishedCpuMs = 0
  #isDue = false
  #isTelling = false
  #mustTell = false
  #isAbsent = false
  /** Among the changes that are not published yet is a list. */
  #hasGap = false
  /** Objects of the source that are not in it, because they cannot be read. */
  refused = 0
  /** Hears what is published, before the readers. */
  published: (changes: ReadonlyMap<string, Entry | undefined>) => void = () => undefined

  constructor(options: CollectionOptions) {
    this.#options = options
    this.typeUrl = options.typeUrl
  }

  /** The revision that readers have heard of; undefined before the first list. */
  get revision(): string | undefined {
    return this.#revision
  }

  /** The API server does not serve it. */
  get isAbsent(): boolean {
    return this.#isAbsent && this.#revision === undefined
  }

  get size(): number {
    return this.#state.size
  }

  get historyBytes(): number {
    return this.#historyBytes
  }

  get historyBytesMax(): number {
    return this.#options.historyBytesMax ?? HISTORY_BYTES_MAX
  }

  /** The oldest revision from which a reader can go on. */
  get floor(): string {
    return this.#floor
  }

  /** The position behind the newest publication. */
  get head(): number {
    return this.#first + this.#publications.length
  }

  get(name: string): Entry | undefined {
    return this.#state.get(name)
  }

  names(): Iterable<string> {
    return this.#state.keys()
  }

  entries(): Iterable<readonly [string, Entry]> {
    return this.#state
  }

  join(reader: CollectionReader): void {
    this.#readers.add(reader)
  }

  leave(reader: CollectionReader): void {
    this.#readers.delete(reader)
  }

  /** Takes a change; readers get it once it is sealed. */
  put(name: string, entry: Entry | undefined): void {
    this.#pending.set(name, entry)
  }

  absent(): void {
    this.#isAbsent = true
    this.tell()
  }

  /** No reader goes on from what it has. */
  restart(): void {
    if (this.#sealed !== undefined) this.#restart(this.#sealed, this.#sealed)
  }

  /** All changes up to this revision were put. */
  seal(revision: string, told: Told = 'changes'): void {
    if (told !== 'changes') this.#hasGap = true
    const before = this.#sealed
    this.#sealed = revision
    if (before !== undefined && (told === 'another-history' || isOlder(revision, before)))
      this.#restart(before, revision)
    if (!this.#isDue) this.#publishOnceDue()
  }

  /** Acknowledgements of the last publication cost as well, so the wait grows while they come. */
  #publishOnceDue(): void {
    const { clock, cpuMs, spacingMs } = this.#options
    const spacing = this.#revision === undefined ? 0 : spacingMs(cpuMs() - this.#publishedCpuMs)
    const waitMs = this.#publishedMs + spacing - clock.nowMs()
    this.#isDue = waitMs > 0
    if (this.#isDue) clock.after(waitMs, () => this.#publishOnceDue())
    else this.#publish()
  }

  /** The position of a reader that holds this revision, or why it has none. */
  positionOf(revision: string): number | 'ahead' | 'gone' | 'another' {
    const newest = this.#revision
    if (newest === undefined) return 'ahead'
    const order = compareVersions(revision, newest)
    if (order === undefined) return 'gone'
    // The revision exists in both histories, and the reader may hold either.
    const wentBackFrom = this.#wentBackFrom
    const isDoubtful = wentBackFrom !== undefined && !isOlder(wentBackFrom, revision)
    if (isDoubtful && isOlder(this.#floor, revision)) return 'another'
    if (order > 0) return 'ahead'
    if (isOlder(revision, this.#floor)) return 'gone'
    let [low, high] = [0, this.#publications.length]
    while (low < high) {
      const middle = (low + high) >> 1
      const isRead = !isOlder(revision, this.#publications[middle]?.revision ?? '')
      if (isRead) low = middle + 1
      else high = middle
    }
    const gapFrom = this.#publications[low]?.gapFrom
    return gapFrom !== undefined && isOlder(gapFrom, revision) ? 'gone' : this.#first + low
  }

  holds(position: number): boolean {
    return position >= this.#first && position <= this.head
  }

  at(position: number): Publication | undefined {
    return this.#publications[position - this.#first]
  }

  /** Says nothing but the revision. Shared by all. */
  bookmark(): Frame {
    const revision = this.#revision ?? ''
    this.#bookmark ??= this.#frame({ nonce: `r${revision}`, revision, resources: [], removed: [] })
    return this.#bookmark
  }

  /**
   * The whole state, shared by readers that come at about the same time: it is that of a position from which they go on.
   * It is made anew when as much was published since as it has itself, or when the history does not reach back to it.
   */
  snapshot(reader: CollectionReader): CollectionSnapshot {
    const snapshot = this.#freshSnapshot()
    snapshot.readers.add(reader)
    return snapshot
  }

  #freshSnapshot(): CollectionSnapshot {
    const known = this.#snapshot
    if (known !== undefined && this.holds(known.position) && known.changedBytes * 8 < known.bytes)
      return known
    this.#retire(known)
    const entries = [...this.#state.values()]
    const bytes = entries.reduce((sum, { resource }) => sum + resource.length, 0)
    const [position, revision] = [this.head, this.#revision ?? '']
    const frames = this.#framesOf(`s${position}`, revision, entries, [])
    this.#snapshot = new CollectionSnapshot({ position, revision, bytes, frames })
    return this.#snapshot
  }

  /** Readers that are not through with it may go on, unless there are too many others. */
  #retire(snapshot: CollectionSnapshot | undefined): void {
    this.#snapshot = undefined
    this.#earlier = [...this.#earlier, ...(snapshot === undefined ? [] : [snapshot])].filter(
      ({ readers }) => readers.size > 0,
    )
    const [oldest] = this.#earlier
    if (oldest === undefined || this.#earlier.length < SNAPSHOTS_MAX) return
    for (const reader of [...oldest.readers]) reader.evicted()
    this.#earlier = this.#earlier.slice(1)
  }

  /** Frames for one reader alone, made as it reads. */
  framesFor(nonce: string, entries: readonly Entry[], removed: readonly string[]): Iterator<Frame> {
    return this.#framesOf(nonce, this.#revision ?? '', entries, removed)
  }

  /** Puts what came before the first list before the history. `floor` is where the changes begin, `before` the present floor. */
  prepend(changes: readonly Change[], floor: string, before: string): boolean {
    if (this.#floor !== before) return false
    const earlier: Publication[] = []
    for (let at = 0; at < changes.length; at += PREPENDED_CHANGES) {
      const some = changes.slice(at, at + PREPENDED_CHANGES)
      const byName = new Map(some.map(({ name, entry }) => [name, entry]))
      earlier.push(this.#publication(`p${floor}.${at}`, some.at(-1)?.revision ?? before, byName))
    }
    this.#publications = [...earlier, ...this.#publications]
    this.#first -= earlier.length
    this.#historyBytes += earlier.reduce((sum, { bytes }) => sum + bytes, 0)
    this.#floor = floor
    return true
  }

  #publish(): void {
    const revision = this.#sealed
    if (revision === undefined) return
    const before = this.#revision
    const gapFrom = this.#hasGap ? before : undefined
    this.#hasGap = false
    const hasMoved = this.#revision !== revision || this.#pending.size > 0
    if (!hasMoved) return
    const changes = new Map(this.#pending)
    this.#pending.clear()
    for (const [name, entry] of changes)
      if (entry === undefined) this.#state.delete(name)
      else this.#state.set(name, entry)
    this.#revision = revision
    this.#bookmark = undefined
    this.#publishedMs = this.#options.clock.nowMs()
    this.published(changes)
    this.#publishedCpuMs = this.#options.cpuMs()
    if (before === undefined) this.#floor = revision
    else if (changes.size > 0 || gapFrom !== undefined)
      this.#append({ ...this.#publication(`c${this.head}`, revision, changes), gapFrom })
    this.tell()
  }

  #append(publication: Publication): void {
    this.#publications.push(publication)
    this.#historyBytes += publication.bytes
    if (this.#snapshot !== undefined) this.#snapshot.changedBytes += publication.bytes
    const { historyBytesMax } = this
    let dropped = 0
    while (this.#historyBytes > historyBytesMax || this.#publications.length - dropped > HISTORY_MAX) {
      const oldest = this.#publications[dropped]
      if (oldest === undefined) break
      this.#historyBytes -= oldest.bytes
      this.#floor = oldest.revision
      dropped++
    }
    if (dropped === 0) return
    this.#publications = this.#publications.slice(dropped)
    this.#first += dropped
    if (this.#snapshot !== undefined && !this.holds(this.#snapshot.position)) this.#retire(this.#snapshot)
  }

  /** The history is another one, or time went back, which the reflector has believed only after long: no position is left. */
  #restart(before: string, revision: string): void {
    this.#first = this.head + 1
    this.#publications = []
    this.#historyBytes = 0
    this.#floor = revision
    if (this.#wentBackFrom === undefined || isOlder(this.#wentBackFrom, before)) this.#wentBackFrom = before
    this.#retire(this.#snapshot)
    for (const reader of [...this.#readers]) reader.restarted()
    this.#publish()
  }

  #publication(
    nonce: string,
    revision: string,
    changes: ReadonlyMap<string, Entry | undefined>,
  ): Publication {
    const entries = [...changes.values()].filter(entry => entry !== undefined)
    const removed = [...changes].filter(([, entry]) => entry === undefined).map(([name]) => name)
    const frames = [...framesIn(this.#framesOf(nonce, revision, entries, removed))]
    return {
      revision,
      frames,
      gapFrom: undefined,
      bytes: frames.reduce((sum, frame) => sum + frame.plain.length, 0),
    }
  }

  *#framesOf(
    nonce: string,
    revision: string,
    entries: readonly Entry[],
    removed: readonly string[],
  ): Generator<Frame, undefined, undefined> {
    let number = 0
    let resources: Buffer[] = []
    let bytes = 0
    for (const { resource } of entries) {
      if (bytes > 0 && bytes + resource.length > RESPONSE_BYTES_MAX) {
        yield this.#frame({ nonce: `${nonce}.${number++}`, revision: '', resources, removed: [] })
        resources = []
        bytes = 0
      }
      resources.push(resource)
      bytes += resource.length
    }
    yield this.#frame({ nonce: `${nonce}.${number}`, revision, resources, removed })
  }

  #frame({ nonce, revision, resources, removed }: FrameParts): Frame {
    const identifier = this.#options.identifier()
    return new Frame(new Receipt(nonce, this.typeUrl), () =>
      framed(discovery.EncodedResponse, {
        system_version_info: revision,
        resources,
        type_url: this.typeUrl,
        nonce,
        removed_resources: removed,
        control_plane: { identifier },
      }),
    )
  }

  /** Readers look whether there is something for them. */
  tell(): void {
    this.#mustTell = true
    if (this.#isTelling) return
    this.#isTelling = true
    void this.#tellAll()
  }

  async #tellAll(): Promise<void> {
    const slice = new Slice({ ...slicingOf(this.#options.clock), sliceMs: TELLING_SLICE_MS })
    while (this.#mustTell) {
      this.#mustTell = false
      for (const reader of [...this.#readers]) {
        reader.moved()
        if (slice.isOver) await slice.next()
      }
    }
    this.#isTelling = false
  }
}

interface FrameParts {
  readonly nonce: string
  readonly revision: string
  readonly resources: readonly Buffer[]
  readonly removed: readonly string[]
}
