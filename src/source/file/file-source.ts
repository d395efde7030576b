import { basename } from 'node:path'
import { type Clock, finishInSlices, Pacer, restMs, slicingOf } from '../../base/clock.ts'
import { count } from '../../base/text.ts'
import type { SourceEvent } from '../../model/snapshot.ts'
import type { LocatedRefusal, Source, SourceHandlers, SourceProblem, SourceStatus } from '../source.ts'
import {
  Catalogue,
  type CatalogueChange,
  type FileSight,
  FolderWatch,
  lookAt,
  nothingFound,
  sightOf,
} from './catalogue.ts'
import {
  FileError,
  type FileObjects,
  type FindDoubts,
  type ParseObject,
  readObjects,
} from './read-objects.ts'

interface FileSourceOptions {
  /** A file, or a folder of *.yaml, *.yml and *.json. */
  readonly path: string
  readonly parseObject: ParseObject
  readonly findDoubts?: FindDoubts
  readonly clock: Clock
  /** Maximum number of parts in all files together, as ReadOptions.partsMax counts. */
  readonly partsMax?: number | undefined
}

/** Interval of the polls when there are no notifications. */
const POLL_MS = 500
/** Delay from a hint to the read: hints come in swarms. */
const HINT_MS = 1
/** An expensive poll runs less often: polls take at most this share of the time. */
const POLL_SHARE = 1 / 20
const POLL_MS_MAX = 10_000
/** A file is read once it has not changed for this long; one that never rests is read anyway after a while. */
const QUIET_MS = 50
const RESTLESS_MS = 400
/** A file that cannot be read is tried once more before it is reported: a writer may be between two writes. */
const RETRY_MS = 200

/** No fact about this file requires a read before the next poll. */
const IDLE = Number.POSITIVE_INFINITY

/** What is known about one file. */
interface FileRecord {
  readonly path: string
  /** The signature of the newest look, and since when (monotonic milliseconds) it has not changed. */
  signature: string
  sinceMs: number
  /** The time at which the file began to differ from what was read. */
  restlessSinceMs: number | undefined
  /** Signature of what was read last, well or badly; undefined when it must be read. */
  read: string | undefined
  /** It was read so soon after a change that another may have left the signature as it was: times have coarse ticks. */
  hasty: boolean
  retried: boolean
  failure: string | undefined
  refusals: FileObjects['refusals']
  otherKinds: FileObjects['otherKinds']
  otherNodes: FileObjects['otherNodes']
  /** The number of parts of its kept objects. */
  parts: number
  /** Texts of what was reported of the content that was read last: a later version does not report it again. */
  reported: ReadonlySet<string>
  /** Monotonic milliseconds of the first look that missed the file. */
  missingSinceMs: number | undefined
  gone: boolean
}

/**
 * Services from files. The folder is watched and, because watching is only a hint, looked at twice a second. A file that
 * is broken or gone keeps its last good state, and that is said once.
 */
export class FileSource implements Source {
  readonly #options: FileSourceOptions
  readonly #catalogue = new Catalogue()
  readonly #records = new Map<string, FileRecord>()
  readonly #watch: FolderWatch
  readonly #stop = new AbortController()
  readonly #pacer: Pacer
  #handlers: SourceHandlers | undefined
  #synced = false
  #lookedAtMs: number | undefined
  /** Why the path as a whole cannot be read, once reported. */
  #missing: string | undefined
  #reported = ''
  /** Changes of the look that is going on. */
  #changes: SourceEvent[] = []

  constructor(options: FileSourceOptions) {
    this.#options = options
    this.#watch = new FolderWatch(() => this.#pacer.wake(HINT_MS))
    this.#pacer = new Pacer({ clock: options.clock, run: () => this.#look() })
  }

  get status(): SourceStatus {
    return {
      missing: this.#synced ? [] : [this.#options.path],
      heardMs: this.#lookedAtMs,
      trouble:
        this.#missing ?? [...this.#records.values()].find(({ failure }) => failure !== undefined)?.failure,
      otherNodes: [...new Set([...this.#records.values()].flatMap(({ otherNodes }) => [...otherNodes]))],
    }
  }

  start(handlers: SourceHandlers): Promise<void> {
    this.#handlers = handlers
    this.#pacer.wake()
    return Promise.resolve()
  }

  async stop(): Promise<void> {
    this.#stop.abort()
    this.#watch.close()
    await this.#pacer.stop()
  }

  /** Gives the milliseconds until the next read. */
  async #look(): Promise<number> {
    const waitMs = await this.#lookNow()
    this.#pacer.rest(HINT_MS)
    return waitMs
  }

  async #lookNow(): Promise<number> {
    const handlers = this.#handlers
    if (handlers === undefined) return POLL_MS
    const { clock, path } = this.#options
    const beganMs = clock.nowMs()
    const look = await lookAt(path)
    const pollMs = Math.min(Math.max(POLL_MS, restMs(clock.nowMs() - beganMs, POLL_SHARE)), POLL_MS_MAX)
    this.#watch.set(look.folders)
    this.#tellMissing(look.kind === 'missing' ? look.reason : undefined)
    if (look.kind === 'missing') return pollMs
    let waitMs = pollMs
    for (const sight of look.files.values()) waitMs = Math.min(waitMs, await this.#visit(sight))
    if (this.#stop.signal.aborted) return waitMs
    for (const record of [...this.#records.values()])
      if (!look.files.has(record.path)) waitMs = Math.min(waitMs, this.#miss(record))
    await this.#hand(handlers, look.skipped)
    this.#lookedAtMs = clock.nowMs()
    return waitMs
  }

  async #visit(sight: FileSight): Promise<number> {
    const record = this.#records.get(sight.path) ?? this.#open(sight)
    this.#found(record)
    if (record.read === sight.signature && !record.hasty) return IDLE
    const now = this.#options.clock.nowMs()
    record.restlessSinceMs ??= now
    if (record.signature !== sight.signature) {
      record.signature = sight.signature
      record.sinceMs = now
      record.retried = false
    }
    const restMs = record.sinceMs + (record.retried ? RETRY_MS : QUIET_MS) - now
    const restless = now - record.restlessSinceMs >= RESTLESS_MS && !record.retried
    if (restMs > 0 && !restless) return restMs
    return await this.#read(record)
  }

  #open({ path, signature, ageMs }: FileSight): FileRecord {
    const record: FileRecord = {
      path,
      signature,
      // One that has rested long before is read without waiting.
      sinceMs: this.#options.clock.nowMs() - ageMs,
      restlessSinceMs: undefined,
      read: undefined,
      hasty: false,
      retried: false,
      failure: undefined,
      refusals: [],
      otherKinds: new Set(),
      otherNodes: new Set(),
      parts: 0,
      reported: new Set(),
      missingSinceMs: undefined,
      gone: false,
    }
    this.#records.set(path, record)
    return record
  }

  async #read(record: FileRecord): Promise<number> {
    const { clock } = this.#options
    const { signature } = record
    const hasty = !record.retried && clock.nowMs() - record.sinceMs < QUIET_MS
    const outcome = await this.#tryRead(record)
    if (this.#stop.signal.aborted) return IDLE
    const after = await sightOf(record.path)
    // What was read may be half of one version and half of another.
    if (after?.signature !== signature) return QUIET_MS
    if (outcome instanceof FileError) {
      if (!record.retried) {
        record.retried = true
        record.sinceMs = clock.nowMs()
        return RETRY_MS
      }
      this.#fail(record, outcome.message, outcome.position)
      if (outcome.passing) return this.#retryLater(record)
    } else if (outcome.bytes === 0 && this.#catalogue.objectsOf(record.path) > 0)
      this.#fail(record, 'the file is empty')
    else await this.#accept(record, outcome)
    record.read = signature
    record.hasty = hasty
    record.retried = false
    record.restlessSinceMs = undefined
    return hasty ? QUIET_MS : IDLE
  }

  /** No change of the file announces that the system recovered: every poll retries. */
  #retryLater(record: FileRecord): number {
    record.read = undefined
    record.sinceMs = this.#options.clock.nowMs()
    record.restlessSinceMs = undefined
    return IDLE
  }

  async #tryRead({ path, parts }: FileRecord): Promise<FileObjects | FileError> {
    const { partsMax = Number.POSITIVE_INFINITY } = this.#options
    let others = -parts
    for (const record of this.#records.values()) others += record.parts
    try {
      const options = { ...this.#options, partsMax: Math.max(0, partsMax - others) }
      return await readObjects(path, { ...options, signal: this.#stop.signal })
    } catch (error) {
      if (error instanceof FileError) return error
      throw error
    }
  }

  async #accept(record: FileRecord, content: FileObjects): Promise<void> {
    const { clock } = this.#options
    this.#apply(await finishInSlices(this.#catalogue.put(record.path, content.objects), slicingOf(clock)))
    this.#tellMistakes(record, content)
    record.refusals = content.refusals
    record.otherKinds = content.otherKinds
    record.otherNodes = content.otherNodes
    if (content.parts < record.parts) this.#retryFailed()
    record.parts = content.parts
    if (record.failure === undefined) return
    record.failure = undefined
    this.#report('recovered', record.path, 'the file is read again')
  }

  #tellMistakes(record: FileRecord, { repeated, doubts, moreDoubts }: FileObjects): void {
    const mistakes = [
      ...repeated.map(id => ({
        kind: 'duplicate' as const,
        location: record.path,
        text: `${id} is in this file more than once; the first one counts`,
      })),
      ...doubts.map(({ line, text }) => ({
        kind: 'doubtful' as const,
        location: `${record.path}:${line}`,
        text,
      })),
    ]
    const isNew = mistakes.filter(({ text }) => !record.reported.has(text))
    for (const { kind, location, text } of isNew) this.#report(kind, location, text)
    if (moreDoubts > 0 && isNew.length > 0)
      this.#report('doubtful', record.path, `${moreDoubts} more unknown fields or kinds ignored`)
    record.reported = new Set(mistakes.map(({ text }) => text))
  }

  #fail(record: FileRecord, reason: string, position = ''): void {
    const location = `${record.path}${position}`
    const failure = `${location}: ${reason}`
    if (record.failure === failure) return
    record.failure = failure
    this.#reportFailure(location, reason, this.#meanwhile(this.#catalogue.objectsOf(record.path)))
  }

  /** The file was there and is not: it may be on its way back (editors save by removing and renaming). */
  #miss(record: FileRecord): number {
    const now = this.#options.clock.nowMs()
    record.missingSinceMs ??= now
    const restMs = record.missingSinceMs + RETRY_MS - now
    if (restMs > 0) return restMs
    if (!record.gone) this.#apply(this.#catalogue.vanish(record.path))
    const left = this.#catalogue.objectsOf(record.path)
    if (left === 0) {
      this.#records.delete(record.path)
      this.#retryFailed()
    } else if (!record.gone)
      this.#reportFailure(record.path, 'file deleted', this.#meanwhile(left) + GONE_ADVICE)
    record.gone = true
    return IDLE
  }

  /** There may be room now for a file that was too large beside the others. */
  #retryFailed(): void {
    for (const record of this.#records.values()) if (record.failure !== undefined) record.read = undefined
  }

  #found(record: FileRecord): void {
    record.missingSinceMs = undefined
    if (!record.gone) return
    record.gone = false
    record.read = undefined
    record.failure = undefined
    this.#report('recovered', record.path, 'the file is back')
  }

  #apply({ events, conflicts }: CatalogueChange): void {
    for (const event of events) this.#changes.push(event)
    for (const { id, kept, ignored } of conflicts)
      this.#report(
        'duplicate',
        ignored,
        `${id} is also in ${basename(kept)}, which comes first by name and counts`,
      )
  }

  /** Hands over everything that one look has found, in one piece. */
  async #hand(handlers: SourceHandlers, skipped: readonly string[]): Promise<void> {
    const batch = this.#changes
    this.#changes = []
    if (batch.length > 0) await handlers.events(batch)
    this.#tellRefusals(handlers)
    const complete = [...this.#records.values()].every(
      ({ read, failure }) => read !== undefined && failure === undefined,
    )
    if (this.#synced || !complete) return
    this.#synced = true
    const records = [...this.#records.values()]
    if (this.#catalogue.size === 0 && records.every(({ refusals }) => refusals.length === 0))
      this.#report('empty', this.#options.path, nothingFound(records, skipped))
    handlers.synced()
  }

  #tellRefusals(handlers: SourceHandlers): void {
    const list: LocatedRefusal[] = []
    for (const { path, refusals } of this.#records.values())
      for (const refusal of refusals) list.push({ location: path, refusal })
    const said = JSON.stringify(list)
    if (said === this.#reported || (this.#reported === '' && list.length === 0)) return
    this.#reported = said
    handlers.refusals(list)
  }

  #tellMissing(reason: string | undefined): void {
    if (this.#missing === reason) return
    const before = this.#missing
    this.#missing = reason
    const { path } = this.#options
    const meanwhile = this.#meanwhile(this.#catalogue.size)
    if (reason !== undefined) this.#reportFailure(path, `cannot read the source files (${reason})`, meanwhile)
    else if (before !== undefined) this.#report('recovered', path, 'can read the source files again')
  }

  /** Says what is in use while a file with `kept` valid objects cannot be read. */
  #meanwhile(kept: number): string {
    if (kept > 0) return `its last valid content stays in use (${count(kept, 'object')})`
    return this.#synced ? 'the whole file is ignored' : 'kprobe waits until it has read every file once'
  }

  #reportFailure(location: string, text: string, meanwhile: string): void {
    this.#handlers?.problem({ kind: 'failed', location, text, meanwhile })
  }

  #report(kind: Exclude<SourceProblem['kind'], 'failed'>, location: string, text: string): void {
    this.#handlers?.problem({ kind, location, text })
  }
}

const GONE_ADVICE = '. To remove these objects, write a file that has only a comment, or restart kprobe'
