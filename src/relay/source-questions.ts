import { type Clock, pause, runWithin } from '../base/clock.ts'
import { watchedIdentity } from '../model/parse.ts'
import { type Resource, requestPath } from '../source/kube/api-client.ts'
import type { Exchange } from '../source/kube/exchange.ts'
import { type Failure, FailureError, failureOfError, failureOfStatus } from '../source/kube/failure.ts'
import { compareVersions, isOlder, isPosition, versionOf } from '../source/kube/object-index.ts'
import { isLeftOut, servedResource } from '../source/kube/server-traits.ts'
import { watchQuery } from '../source/kube/watch-run.ts'
import { statusOf } from '../source/kube/wire/encodings.ts'
import type { ApiObject, WatchEvent } from '../source/kube/wire/tables.ts'
import type { Change, Collection } from './collection.ts'
import type { Entry } from './frames.ts'

interface SourceQuestionsOptions {
  readonly clock: Clock
  readonly collection: Collection
  readonly exchange: Exchange
  readonly resource: Resource
  readonly toEntry: (object: ApiObject, name: string, version: string) => Entry
}

/** The API server sends a bookmark 2 s before the end of a watch: it means that all changes up to then were sent. */
const WATCH_SECONDS = 3
const ANSWER_MS_MAX = 8_000

/** Queries the API server for readers that hold a newer state than the relay, or an older one than its history. */
export class SourceQuestions {
  readonly #options: SourceQuestionsOptions
  readonly #stop = new AbortController()
  /** Revisions that the next request is for. */
  readonly #revisions: string[] = []
  #running: Promise<void> | undefined
  #next: Promise<void> | undefined
  #present: Promise<string> | undefined
  /** The source does not know the changes since then. */
  #failed = ''

  constructor(options: SourceQuestionsOptions) {
    this.#options = options
  }

  stop(): void {
    this.#stop.abort()
  }

  /**
   * Reads the changes before the first list of the relay, which the source remembers: by that readers resume at a relay that
   * has just started. Resolves when the source was asked.
   */
  readBack(revision: string): Promise<void> {
    if (this.#stop.signal.aborted || this.#isHopeless(revision)) return Promise.resolve()
    this.#revisions.push(revision)
    this.#next ??= this.#readBackNext()
    return this.#next
  }

  async #readBackNext(): Promise<void> {
    await this.#running
    // Readers of a relay that restarts come at about the same time: one request is for all of them.
    await pause(this.#options.clock, 100, this.#stop.signal)
    this.#running = this.#next
    this.#next = undefined
    await this.#answer(this.#revisions.splice(0))
  }

  /** Begins with the oldest. One that lies about its revision does not keep the others from theirs. */
  async #answer(revisions: readonly string[]): Promise<void> {
    let wanted = revisions
      .filter(revision => isPosition(revision) && !this.#isHopeless(revision))
      .sort((a, b) => compareVersions(a, b) ?? 0)
    // Further attempts with a newer revision, where the oldest one is too old for the source.
    for (let attempt = 0; attempt < 3 && !this.#stop.signal.aborted; attempt++) {
      const [oldest] = wanted
      if (oldest === undefined || !isOlder(oldest, this.#options.collection.history.floor)) return
      if (await this.#attempt(oldest)) return
      wanted = wanted.slice(Math.max(1, wanted.length >> 1)).filter(each => !this.#isHopeless(each))
    }
  }

  #isHopeless(revision: string): boolean {
    return this.#failed === revision || isOlder(revision, this.#failed)
  }

  async #attempt(from: string): Promise<boolean> {
    const { clock, collection } = this.#options
    const floor = collection.history.floor
    try {
      const limits = { limitMs: ANSWER_MS_MAX, signal: this.#stop.signal }
      const changes = await runWithin(clock, limits, signal => this.#read({ from, to: floor }, signal))
      return changes !== undefined && collection.prepend(changes, from, floor)
    } catch (error) {
      if (failureOfError(error).kind === 'expired') this.#failed = from
      return false
    }
  }

  /** Undefined if the source has not confirmed that it has sent everything up to `to`. */
  async #read(
    { from, to }: { readonly from: string; readonly to: string },
    signal: AbortSignal,
  ): Promise<readonly Change[] | undefined> {
    const { collection, exchange, resource } = this.#options
    const path = requestPath(servedResource(resource, exchange.traits), watchQuery(from, WATCH_SECONDS))
    const stream = await exchange.watch({ kind: resource.kind, path, signal })
    const changes: Change[] = []
    let bytes = 0
    for await (const { events } of stream)
      for (const event of events) {
        if (event.type === 'ERROR') throw new FailureError(failureIn(event.object))
        const revision = versionOf(event.object)?.resourceVersion ?? ''
        if (isOlder(to, revision)) return changes
        const change = this.#changeOf(event, revision)
        if (change !== undefined) changes.push(change)
        bytes += change?.entry?.resource.length ?? 0
        if (revision === to) return changes
        // More belong into a whole state.
        if (changes.length > 20_000 || bytes > collection.history.bytesMax) return undefined
      }
    return undefined
  }

  #changeOf({ type, object }: WatchEvent, revision: string): Change | undefined {
    if (type === 'BOOKMARK' || isLeftOut(this.#options.resource, object)) return undefined
    const name = watchedIdentity(object)?.key ?? ''
    if (type === 'DELETED') return { revision, name, entry: undefined }
    return { revision, name, entry: this.#options.toEntry(object, name, revision) }
  }

  /** Gives the revision that the source has at a time after the question; empty if it does not answer. */
  present(): Promise<string> {
    this.#present ??= this.#readPresent()
    return this.#present
  }

  async #readPresent(): Promise<string> {
    const { clock, exchange, resource } = this.#options
    // Minimum time between two requests for the present revision: what readers claim costs the source no more than
    // that.
    await pause(clock, 1_000, this.#stop.signal)
    // An answer that began before a question does not answer it.
    this.#present = undefined
    // Without a resourceVersion the list is consistent: no API server may answer from an old cache.
    const path = requestPath(servedResource(resource, exchange.traits), { limit: '1' })
    const list = (signal: AbortSignal) =>
      exchange.list({ kind: resource.kind, path, signal }, () => undefined)
    return await runWithin(clock, { limitMs: ANSWER_MS_MAX, signal: this.#stop.signal }, list).then(
      ({ resourceVersion }) => resourceVersion,
      () => '',
    )
  }
}

function failureIn(object: ApiObject): Failure {
  const status = statusOf(object)
  return failureOfStatus(status?.code ?? 0, status)
}
