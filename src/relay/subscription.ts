import {
  ABORTED,
  type Call,
  DATA_LOSS,
  NOT_FOUND,
  OUT_OF_RANGE,
  RpcError,
  UNAVAILABLE,
} from '../api/grpc/rpc.ts'
import type { Cancel, Clock } from '../base/clock.ts'
import { isOlder } from '../source/kube/object-index.ts'
import type { Collection } from './collection.ts'
import type { CollectionReader, CollectionSnapshot, Entry, Frame, Receipt } from './frames.ts'
import type { RelayState } from './state.ts'
import { SubscribedNames } from './subscribed-names.ts'

export interface Beginning {
  /** The revision that it holds; undefined for a reader that resumes otherwise, or not at all. */
  readonly token: { readonly revision: string; readonly cluster: string } | undefined
  /** The revision of the state that a reader without a token holds; empty if it holds none. */
  readonly atLeast: string
  readonly versions: Readonly<Record<string, string>>
}

interface SubscriptionOptions {
  readonly state: RelayState
  readonly collection: Collection
  readonly clock: Clock
  readonly call: Call
  readonly beginning: Beginning
  readonly isWildcard: boolean
  /** A closed subscription of this stream and collection, whose last response may lack its acknowledgement. */
  readonly before?: Subscription | undefined
  readonly evicted: () => void
}

/** A reader waits so long for a revision that the relay does not have yet, before it is sent elsewhere. */
const OPENING_MS = 3_000
/** Written without an acknowledgement. */
const WINDOW_BYTES = 1024 * 1024
/** After so long, a reader that has not acknowledged is evicted, and an idle one gets the revision again if the source was heard. */
const SILENT_MS = 60_000

/** One reader of one collection: its position, and what it has not acknowledged. */
export class Subscription implements CollectionReader {
  readonly #options: Omit<SubscriptionOptions, 'beginning' | 'before' | 'isWildcard'>
  /** Undefined once it has begun: it may be long. */
  #beginning: Beginning | undefined
  #position: number | undefined
  #snapshot: CollectionSnapshot | undefined
  #snapshotAt = 0
  /** Frames for this reader alone. */
  #own: Iterator<Frame> | undefined
  /** Frames of the publication at the position that were written. */
  #written = 0
  #told: string | undefined
  #toldMs = 0
  #awaited: Receipt | undefined
  #awaitedMs = 0
  #ownNumber = 0
  /** Undefined for a reader of all. */
  readonly #names: SubscribedNames | undefined
  #isClosed = false
  #isAsking = false
  readonly #openedMs: number
  #cancelOpening: Cancel | undefined

  constructor({ beginning, before, isWildcard, ...options }: SubscriptionOptions) {
    this.#options = options
    if (before !== undefined) [this.#awaited, this.#awaitedMs] = [before.#awaited, before.#awaitedMs]
    this.#beginning = beginning
    this.#names = isWildcard ? undefined : new SubscribedNames(options.state)
    this.#openedMs = options.clock.nowMs()
    options.collection.join(this)
    options.state.readers++
  }

  /** Begins as soon as the relay has what that needs. */
  begin(names: readonly string[]): void {
    this.#names?.add(names)
    this.moved()
    if (this.#position !== undefined || this.#isClosed) return
    this.#cancelOpening = this.#options.clock.after(OPENING_MS, () => this.moved())
  }

  close(): void {
    if (this.#isClosed) return
    this.#isClosed = true
    this.#cancelOpening?.()
    this.#snapshot?.readers.delete(this)
    this.#options.collection.leave(this)
    this.#options.state.readers--
    this.#options.state.ownFrames.release(this)
    this.#names?.release()
  }

  /** Takes a request that is nothing but the acknowledgement that is awaited; false for any other. */
  takeReceipt(request: Buffer): boolean {
    const isIt = this.#awaited?.is(request) === true
    if (isIt) this.#acknowledged()
    return isIt
  }

  acknowledged(nonce: string): void {
    if (nonce === this.#awaited?.nonce) this.#acknowledged()
  }

  #acknowledged(): void {
    this.#awaited = undefined
    this.drained()
  }

  /** Everything that was written has left the process. */
  drained(): void {
    this.#options.state.ownFrames.release(this)
    this.pump()
  }

  subscribe(names: readonly string[]): void {
    this.#names?.add(names)
    this.pump()
  }

  unsubscribe(names: readonly string[]): void {
    this.#names?.remove(names)
  }

  get nameCount(): number {
    return this.#names?.count ?? 0
  }

  get isWildcard(): boolean {
    return this.#names === undefined
  }

  get isClosed(): boolean {
    return this.#isClosed
  }

  get isStalled(): boolean {
    return (
      !this.#isClosed &&
      this.#awaited !== undefined &&
      this.#options.clock.nowMs() - this.#awaitedMs > SILENT_MS
    )
  }

  moved(): void {
    const { call } = this.#options
    if (this.#isClosed) return
    call.attempt(() => {
      if (this.#position === undefined) this.#open()
      this.pump()
    })
  }

  restarted(): void {
    this.#options.call.end(DATA_LOSS, 'the state of the API server went back in time')
  }

  evicted(): void {
    this.#options.evicted()
    this.#options.call.end(ABORTED, 'evicted: reads too slowly; resume, or list again')
  }

  /** Evicts the reader and frees the memory of its written responses, which only goes with the connection. */
  dropped(): void {
    this.evicted()
    this.#options.call.drop?.()
  }

  /** Writes what the reader may get now. */
  pump(): void {
    if (this.#isClosed || this.#awaited !== undefined || this.#position === undefined) return
    const { call, clock, state } = this.#options
    let bytes = 0
    let last: Frame | undefined
    for (let frame = this.#next(); frame !== undefined; frame = this.#next()) {
      last = frame
      // Compression for one reader is not worth the time of the others.
      const isOwn = this.#own !== undefined
      const written = call.acceptsGzip === true && !isOwn ? frame.compressed : frame.plain
      bytes += written.length
      if (isOwn) state.ownFrames.hold(this, written.length)
      if (!call.write(written) || bytes >= WINDOW_BYTES) break
    }
    if (last === undefined) return
    this.#awaited = last.receipt
    this.#awaitedMs = clock.nowMs()
    this.#toldMs = this.#awaitedMs
  }

  /** Shows the reader of a quiet collection that the relay still hears its source. */
  repeat(): void {
    const { state, clock } = this.#options
    if (this.#awaited !== undefined || this.#position === undefined) return
    const isHeard = (state.heardMs() ?? Number.NEGATIVE_INFINITY) > this.#toldMs
    if (!isHeard || clock.nowMs() - this.#toldMs < SILENT_MS) return
    this.#told = undefined
    this.pump()
  }

  #open(): void {
    const { collection, clock, state } = this.#options
    const beginning = this.#beginning
    if (beginning === undefined) return
    if (collection.isAbsent) throw new RpcError(NOT_FOUND, 'the API server does not serve this type')
    const isLate = clock.nowMs() - this.#openedMs >= OPENING_MS
    if (collection.revision === undefined || !state.isIdentified) {
      if (isLate) throw new RpcError(UNAVAILABLE, 'the relay has not read its source yet')
      return
    }
    const { token } = beginning
    if (token === undefined) this.#beginAnew(beginning, isLate)
    else if (token.cluster !== '' && state.cluster !== '' && token.cluster !== state.cluster)
      throw new RpcError(DATA_LOSS, `this is cluster ${state.cluster}, not ${token.cluster}`)
    else this.#resume(token.revision, isLate)
  }

  /** No reader goes back in time because a relay is behind: only if its source is older, too. */
  #beginAnew({ atLeast, versions }: Beginning, isLate: boolean): void {
    const { state, collection, call } = this.#options
    const position = atLeast === '' ? 0 : collection.positionOf(atLeast)
    if (position === 'another') this.restarted()
    else if (position !== 'ahead') this.#start(versions)
    else if (isLate && !this.#isAsking) {
      this.#isAsking = true
      void state.isPast(collection, atLeast).then(isPast =>
        call.attempt(() => {
          if (this.#isClosed || this.#position !== undefined) return
          if (!isPast && collection.positionOf(atLeast) === 'ahead') throw this.#behind(atLeast)
          this.#start(versions)
          this.pump()
        }),
      )
    }
  }

  #behind(revision: string): RpcError {
    const { collection } = this.#options
    return new RpcError(
      UNAVAILABLE,
      `the relay is behind: it has ${collection.revision}, not ${revision.slice(0, 20)}`,
    )
  }

  #resume(revision: string, isLate: boolean): void {
    const { collection } = this.#options
    const position = collection.positionOf(revision)
    if (position === 'another') this.restarted()
    else if (position === 'ahead') {
      if (isLate) throw this.#behind(revision)
    } else if (position === 'gone') this.#backfill(revision)
    else if (this.#names === undefined) this.#started(position)
    else this.#resumeNames(this.#names, revision)
  }

  /** Queries the source once, and answers the reader after any outcome. */
  #backfill(revision: string): void {
    const { state, collection, call } = this.#options
    if (this.#isAsking) return
    this.#isAsking = true
    void state.backfill(collection, revision).then(() =>
      call.attempt(() => {
        if (this.#isClosed || this.#position !== undefined) return
        if (collection.positionOf(revision) === 'gone')
          throw new RpcError(OUT_OF_RANGE, `the changes since ${revision} are no longer known`)
        this.moved()
      }),
    )
  }

  #start(versions: Readonly<Record<string, string>>): void {
    const { collection } = this.#options
    const held = Object.keys(versions)
    if (this.#names !== undefined) {
      for (const [name, version] of Object.entries(versions)) this.#names.holds(name, version)
      this.#started(collection.history.head)
    } else if (held.length === 0) {
      this.#snapshot = collection.snapshot(this)
      this.#started(this.#snapshot.position)
    } else {
      const stale: Entry[] = []
      for (const [name, entry] of collection.entries())
        if (versions[name] !== entry.version) stale.push(entry)
      const gone = held.filter(name => collection.get(name) === undefined)
      this.#own = collection.framesFor(`o${this.#ownNumber++}`, stale, gone)
      this.#started(collection.history.head)
    }
  }

  /** Resumes by name: the reader has the objects of that revision, and gets later versions and deletions. */
  #resumeNames(names: SubscribedNames, revision: string): void {
    const { collection } = this.#options
    for (const name of names.all) {
      const version = collection.get(name)?.version
      if (version !== undefined && !isOlder(revision, version)) names.holds(name, version)
    }
    this.#started(collection.history.head)
  }

  #started(position: number): void {
    this.#position = position
    this.#beginning = undefined
    this.#cancelOpening?.()
    this.#cancelOpening = undefined
  }

  #next(): Frame | undefined {
    const { collection } = this.#options
    if (this.#snapshot !== undefined) {
      const frame = this.#snapshot.frame(this.#snapshotAt++)
      if (frame !== undefined) return this.#tells(frame, this.#snapshot.revision)
      this.#snapshot.readers.delete(this)
      this.#snapshot = undefined
    }
    const own = this.#own?.next()
    if (own?.done === false) return this.#tells(own.value, collection.revision)
    this.#own = undefined
    return this.#names === undefined ? this.#nextPublished() : this.#nextNamed(this.#names)
  }

  #nextPublished(): Frame | undefined {
    const { collection } = this.#options
    const position = this.#position ?? 0
    if (!collection.history.holds(position)) {
      this.evicted()
      return undefined
    }
    const publication = collection.history.at(position)
    if (publication === undefined) return this.#nextBookmark()
    const frame = publication.frames[this.#written++]
    if (this.#written >= publication.frames.length) {
      this.#position = position + 1
      this.#written = 0
    }
    return frame === undefined ? undefined : this.#tells(frame, publication.revision)
  }

  #nextNamed(names: SubscribedNames): Frame | undefined {
    const { collection } = this.#options
    const { changed, gone } = names.takeNews(collection)
    if (changed.length === 0 && gone.length === 0) return this.#nextBookmark()
    this.#own = collection.framesFor(`o${this.#ownNumber++}`, changed, gone)
    const first = this.#own.next()
    return first.done === true ? undefined : this.#tells(first.value, collection.revision)
  }

  /** Says nothing but the revision, at least 10 s after the last word. */
  #nextBookmark(): Frame | undefined {
    const { collection, clock } = this.#options
    const { revision } = collection
    if (this.#told === revision) return undefined
    if (this.#told !== undefined && clock.nowMs() - this.#toldMs < 10_000) return undefined
    return this.#tells(collection.bookmark(), revision)
  }

  #tells(frame: Frame, revision: string | undefined): Frame {
    this.#told = revision
    return frame
  }
}
