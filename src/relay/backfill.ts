import { type Clock, pause } from '../base/clock.ts'
import { watchedIdentity } from '../model/parse.ts'
import { type Resource, requestPath } from '../source/kube/api-client.ts'
import {
  type Exchange,
  type Failure,
  FailureError,
  failureOfError,
  failureOfStatus,
} from '../source/kube/exchange.ts'
import { compareVersions, isOlder, isPosition, versionOf } from '../source/kube/object-index.ts'
import { watchQuery } from '../source/kube/reflector-state.ts'
import { statusOf } from '../source/kube/wire/encodings.ts'
import type { ApiObject, WatchEvent } from '../source/kube/wire/tables.ts'
import type { Change, Collection } from './collection.ts'
import type { Entry } from './frames.ts'

interface BackfillOptions {
  readonly clock: Clock
  readonly collection: Collection
  readonly read: {
    readonly exchange: Exchange
    readonly resource: Resource
    readonly toEntry: (object: ApiObject, name: string, version: string) => Entry
  }
}

interface Question {
  readonly revision: string
  readonly answered: () => void
}

/** Readers of a relay that restarts come at about the same time: one request is for all of them. */
const GATHER_MS = 100
/** The API server sends a bookmark 2 s before the end of a watch: it says that all changes up to then were sent. */
const WATCH_SECONDS = 3
const WATCH_MS_MAX = 8_000
/** Further attempts with a newer revision, where the oldest one is too old for the source. */
const ATTEMPTS_MAX = 3
/** More belong into a whole state. */
const CHANGES_MAX = 20_000

/**
 * Reads the changes before the first list of a relay from the source, which remembers the recent past: by that readers resume
 * at a relay that has just started.
 */
export class Backfill {
  readonly #options: BackfillOptions
  readonly #stop = new AbortController()
  #questions: Question[] = []
  #isRunning = false
  /** The source does not know the changes since then. */
  #failed = ''

  constructor(options: BackfillOptions) {
    this.#options = options
  }

  /** Resolves when the source was asked. */
  ask(revision: string): Promise<void> {
    if (this.#stop.signal.aborted || this.#isHopeless(revision)) return Promise.resolve()
    return new Promise(answered => {
      this.#questions.push({ revision, answered })
      if (!this.#isRunning) void this.#run()
    })
  }

  stop(): void {
    this.#stop.abort()
  }

  async #run(): Promise<void> {
    this.#isRunning = true
    while (this.#questions.length > 0) {
      await pause(this.#options.clock, GATHER_MS, this.#stop.signal)
      const questions = this.#questions
      this.#questions = []
      await this.#answer(questions.map(({ revision }) => revision))
      for (const { answered } of questions) answered()
    }
    this.#isRunning = false
  }

  /** Begins with the oldest. One that lies about its revision does not keep the others from theirs. */
  async #answer(revisions: readonly string[]): Promise<void> {
    let wanted = revisions
      .filter(revision => isPosition(revision) && !this.#isHopeless(revision))
      .sort((a, b) => compareVersions(a, b) ?? 0)
    for (let attempt = 0; attempt < ATTEMPTS_MAX && !this.#stop.signal.aborted; attempt++) {
      const [oldest] = wanted
      if (oldest === undefined || !isOlder(oldest, this.#options.collection.floor)) return
      if (await this.#attempt(oldest)) return
      wanted = wanted.slice(Math.max(1, wanted.length >> 1)).filter(each => !this.#isHopeless(each))
    }
  }

  #isHopeless(revision: string): boolean {
    return this.#failed === revision || isOlder(revision, this.#failed)
  }

  async #attempt(from: string): Promise<boolean> {
    const { clock, collection } = this.#options
    const floor = collection.floor
    const controller = new AbortController()
    const abort = (): void => controller.abort()
    const cancel = clock.after(WATCH_MS_MAX, abort)
    this.#stop.signal.addEventListener('abort', abort)
    try {
      const changes = await this.#read({ from, to: floor }, controller.signal)
      return changes !== undefined && collection.prepend(changes, from, floor)
    } catch (error) {
      if (failureOfError(error).kind === 'expired') this.#failed = from
      return false
    } finally {
      cancel()
      this.#stop.signal.removeEventListener('abort', abort)
      controller.abort()
    }
  }

  /** Undefined where the source has not said that it has sent everything up to `to`. */
  async #read(
    { from, to }: { readonly from: string; readonly to: string },
    signal: AbortSignal,
  ): Promise<readonly Change[] | undefined> {
    const { collection, read } = this.#options
    const { exchange, resource } = read
    const path = requestPath(resource, watchQuery(from, WATCH_SECONDS))
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
        if (changes.length > CHANGES_MAX || bytes > collection.historyBytesMax) return undefined
      }
    return undefined
  }

  #changeOf({ type, object }: WatchEvent, revision: string): Change | undefined {
    if (type === 'BOOKMARK') return undefined
    const name = watchedIdentity(object)?.key ?? ''
    if (type === 'DELETED') return { revision, name, entry: undefined }
    return { revision, name, entry: this.#options.read.toEntry(object, name, revision) }
  }
}

function failureIn(object: ApiObject): Failure {
  const status = statusOf(object)
  return failureOfStatus(status?.code ?? 0, status)
}
