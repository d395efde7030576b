import { framed } from '../api/grpc/rpc.ts'
import { type Clock, Slice, slicingOf } from '../base/clock.ts'
import { Newest } from '../base/queues.ts'
import { isOlder } from '../source/kube/object-index.ts'
import { type CollectionReader, CollectionSnapshot, type Entry, Frame, Receipt } from './frames.ts'
import { History, type PositionOrReason, type Publication } from './history.ts'
import { discovery } from './schema.ts'

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
  /** Minimum time between two publications, when the process took so much processor time since the first; milliseconds. */
  readonly spacingMs: (cpuMs: number) => number
  /** The identity of the cluster, as every response bears it. */
  readonly identifier: () => string
  readonly historyBytesMax?: number
}

/** Resources of one response. gRPC clients take 4 MiB; an object has up to 1.5 MiB. */
const RESPONSE_BYTES_MAX = 256 * 1024
/** Whole states that exist at a time, each for readers that are not through yet. */
const SNAPSHOTS_MAX = 3
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
  readonly history: History
  #revision: string | undefined
  #sealed: string | undefined
  #snapshot: CollectionSnapshot | undefined
  /** Snapshots that are no longer given out, and have readers. */
  #earlier: readonly CollectionSnapshot[] = []
  #bookmark: Frame | undefined
  #publishedMs = Number.NEGATIVE_INFINITY
  #publishedCpuMs = 0
  #isDue = false
  readonly #telling = new Newest<true>(() => this.#tellAll())
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
    this.history = new History(options.historyBytesMax)
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

  /** Makes every reader begin with a whole state. */
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
    const { clock, spacingMs } = this.#options
    const spacing = this.#revision === undefined ? 0 : spacingMs(clock.cpuMs() - this.#publishedCpuMs)
    const waitMs = this.#publishedMs + spacing - clock.nowMs()
    this.#isDue = waitMs > 0
    if (this.#isDue) clock.after(waitMs, () => this.#publishOnceDue())
    else this.#publish()
  }

  /** Says nothing but the revision. Shared by all. */
  bookmark(): Frame {
    const revision = this.#revision ?? ''
    this.#bookmark ??= this.#frame({ nonce: `r${revision}`, revision, resources: [], removed: [] })
    return this.#bookmark
  }

  /**
   * The whole state, shared by readers that come at about the same time: it is that of a position from which they continue.
   * It is made anew when as much was published since as it has itself, or when the history does not reach back to it.
   */
  snapshot(reader: CollectionReader): CollectionSnapshot {
    const snapshot = this.#freshSnapshot()
    snapshot.readers.add(reader)
    return snapshot
  }

  #freshSnapshot(): CollectionSnapshot {
    const known = this.#snapshot
    if (known !== undefined && this.history.holds(known.position) && known.changedBytes * 8 < known.bytes)
      return known
    this.#retire(known)
    const entries = [...this.#state.values()]
    const bytes = entries.reduce((sum, { resource }) => sum + resource.length, 0)
    const [position, revision] = [this.history.head, this.#revision ?? '']
    const frames = this.#framesOf(`s${position}`, revision, entries, [])
    this.#snapshot = new CollectionSnapshot({ position, revision, bytes, frames })
    return this.#snapshot
  }

  /** Readers that are not through with it may continue, unless there are too many others. */
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
    if (this.history.floor !== before) return false
    const earlier: Publication[] = []
    for (let at = 0; at < changes.length; at += PREPENDED_CHANGES) {
      const some = changes.slice(at, at + PREPENDED_CHANGES)
      const byName = new Map(some.map(({ name, entry }) => [name, entry]))
      earlier.push(this.#publication(`p${floor}.${at}`, some.at(-1)?.revision ?? before, byName))
    }
    this.history.prepend(earlier, floor)
    return true
  }

  /** The position of a reader that holds this revision, or why it has none. */
  positionOf(revision: string): PositionOrReason {
    return this.#revision === undefined ? 'ahead' : this.history.positionOf(revision, this.#revision)
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
    this.#publishedCpuMs = this.#options.clock.cpuMs()
    if (before === undefined) this.history.floor = revision
    else if (changes.size > 0 || gapFrom !== undefined)
      this.#append({ ...this.#publication(`c${this.history.head}`, revision, changes), gapFrom })
    this.tell()
  }

  #append(publication: Publication): void {
    this.history.append(publication)
    const snapshot = this.#snapshot
    if (snapshot === undefined) return
    snapshot.changedBytes += publication.bytes
    if (!this.history.holds(snapshot.position)) this.#retire(snapshot)
  }

  /** The history is another one, or time went back, which the reflector has believed only after long: no position is left. */
  #restart(before: string, revision: string): void {
    this.history.restart(before, revision)
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
    const frames = [...this.#framesOf(nonce, revision, entries, removed)]
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

  /** Makes readers check for news. */
  tell(): void {
    this.#telling.offer(true)
  }

  async #tellAll(): Promise<void> {
    // Thousands of readers are notified in one go: what a second slice writes, node:http2 keeps until the event loop
    // has read the acknowledgements of the first one.
    const slice = new Slice({ ...slicingOf(this.#options.clock), sliceMs: 50 })
    for (const reader of [...this.#readers]) {
      reader.moved()
      if (slice.isOver) await slice.next()
    }
  }
}

interface FrameParts {
  readonly nonce: string
  readonly revision: string
  readonly resources: readonly Buffer[]
  readonly removed: readonly string[]
}
