import { basename } from 'node:path'
import { type Clock, finishInSlices, Pacer, restMs, slicingOf } from '../../base/clock.ts'
import { codeOf } from '../../base/errors.ts'
import { count } from '../../base/text.ts'
import type { SourceEvent } from '../../model/snapshot.ts'
import type { LocatedRefusal, Source, SourceHandlers, SourceProblem, SourceStatus } from '../source.ts'
import {
  Catalogue,
  type CatalogueChange,
  type FileSight,
  type Look,
  lookAt,
  nothingFound,
  sightOf,
} from './catalogue.ts'
import { FileError, type FileObjects, type ParseObject, readObjects } from './read-objects.ts'

interface FileSourceOptions {
  /** A file, or a folder of *.yaml, *.yml and *.json. */
  readonly path: string
  readonly parseObject: ParseObject
  readonly clock: Clock
  /** Maximum number of parts in all files together, as ReadOptions.partsMax counts. */
  readonly partsMax?: number | undefined
}

/** Interval of the checks. */
const POLL_MS = 250
/** An expensive check runs less often. */
const POLL_PACE = { share: 1 / 20, minMs: POLL_MS, maxMs: 10_000 } as const
/** A file is read once it has not changed for this long, which is longer than a tick of file times. */
const QUIET_MS = 50
/** A file that keeps changing is read anyway after so many checks. */
const RESTLESS_LOOKS = 8
/** Later warnings are dropped. */
const WARNINGS_MAX = 1_000

interface FileRecord {
  readonly path: string
  /** The signature that the newest check found. */
  seen: string
  /** Looks since the last read that found another signature than was read. */
  looks: number
  /** The signature of what was read last, well or badly; undefined when it must be read again. */
  read: string | undefined
  /** The signature that could not be read once: a writer may be between two writes, so only the second failure counts. */
  failed: string | undefined
  /** The failure in the log. */
  failure: string | undefined
  /** The last valid content, whose objects are in the catalogue. */
  content: Pick<FileObjects, 'refusals' | 'otherKinds' | 'otherNodes' | 'parts'> | undefined
  /** An editor may replace a file by removing it: it counts as deleted once two checks have missed it. */
  presence: 'there' | 'missed' | 'gone'
}

/**
 * Services from files, which are checked four times a second. A file that is invalid or deleted keeps its last good state;
 * that, and each unknown field and kind, is reported once.
 */
export class FileSource implements Source {
  readonly #options: FileSourceOptions
  readonly #catalogue = new Catalogue()
  readonly #records = new Map<string, FileRecord>()
  readonly #warned = new Set<string>()
  readonly #stop = new AbortController()
  readonly #pacer: Pacer
  #handlers: SourceHandlers | undefined
  #synced = false
  #lookedAtMs: number | undefined
  /** The reported error of the path as a whole. */
  #missing: string | undefined
  #reported = ''
  #changes: SourceEvent[] = []

  constructor(options: FileSourceOptions) {
    this.#options = options
    this.#pacer = new Pacer({ clock: options.clock, run: () => this.#look() })
  }

  get status(): SourceStatus {
    return {
      missing: this.#synced ? [] : [this.#options.path],
      heardMs: this.#lookedAtMs,
      trouble:
        this.#missing ?? [...this.#records.values()].find(({ failure }) => failure !== undefined)?.failure,
      otherNodes: [
        ...new Set([...this.#records.values()].flatMap(({ content }) => [...(content?.otherNodes ?? [])])),
      ],
    }
  }

  start(handlers: SourceHandlers): Promise<void> {
    this.#handlers = handlers
    this.#pacer.wake()
    return Promise.resolve()
  }

  async stop(): Promise<void> {
    this.#stop.abort()
    await this.#pacer.stop()
  }

  /** Gives the milliseconds until the next check. */
  async #look(): Promise<number> {
    const handlers = this.#handlers
    if (handlers === undefined) return POLL_MS
    const { clock } = this.#options
    const beganMs = clock.nowMs()
    const look = await this.#lookAtPath()
    const pollMs = restMs(clock.nowMs() - beganMs, POLL_PACE)
    if (look === undefined) return pollMs
    let isResting = true
    for (const sight of look.files.values()) isResting = (await this.#visit(sight)) && isResting
    if (this.#stop.signal.aborted) return pollMs
    for (const record of [...this.#records.values()]) if (!look.files.has(record.path)) this.#miss(record)
    await this.#hand(handlers, look.skipped)
    this.#lookedAtMs = clock.nowMs()
    return isResting ? pollMs : QUIET_MS
  }

  /** Undefined while the path cannot be read, which is reported once. */
  async #lookAtPath(): Promise<Look | undefined> {
    try {
      const look = await lookAt(this.#options.path)
      this.#tellMissing(undefined)
      return look
    } catch (error) {
      this.#tellMissing(codeOf(error))
      return undefined
    }
  }

  /** Reads a file that has changed. Gives false if it changes too fast to be read now. */
  async #visit({ path, signature, ageMs }: FileSight): Promise<boolean> {
    const record = this.#records.get(path) ?? this.#open(path)
    this.#found(record)
    if (record.read === signature) return true
    // Only at first sight: the times of a later change may be those of another machine, whose clock is slow.
    const hasRested = record.seen === '' && ageMs >= QUIET_MS
    const isResting = hasRested || record.seen === signature
    record.seen = signature
    record.looks++
    if (!isResting && record.looks < RESTLESS_LOOKS) return false
    const outcome = await this.#tryRead(record)
    if (this.#stop.signal.aborted) return true
    const after = await sightOf(path)
    // A writer may have changed the file during the read.
    if (after?.signature !== signature) return false
    record.looks = 0
    const isSettled = await this.#take(record, outcome)
    // A later write within the same tick of file times would leave the signature as it is: the file is read once more.
    record.read = isSettled && isResting ? signature : undefined
    return isResting
  }

  #open(path: string): FileRecord {
    const record: FileRecord = {
      path,
      seen: '',
      looks: 0,
      read: undefined,
      failed: undefined,
      failure: undefined,
      content: undefined,
      presence: 'there',
    }
    this.#records.set(path, record)
    return record
  }

  /** Takes what was read of a file. Gives false if the same content must be read again. */
  async #take(record: FileRecord, outcome: FileObjects | FileError): Promise<boolean> {
    const hasFailed = record.failed === record.seen
    record.failed = outcome instanceof FileError ? record.seen : undefined
    if (outcome instanceof FileError) {
      if (!hasFailed) return false
      this.#fail(record, outcome.message, outcome.position)
      // No change of the file announces that the system recovered.
      return !outcome.passing
    }
    if (outcome.bytes === 0 && this.#catalogue.objectsOf(record.path) > 0)
      this.#fail(record, 'the file is empty')
    else await this.#accept(record, outcome)
    return true
  }

  async #tryRead({ path, content }: FileRecord): Promise<FileObjects | FileError> {
    const { partsMax = Number.POSITIVE_INFINITY } = this.#options
    let others = -(content?.parts ?? 0)
    for (const record of this.#records.values()) others += record.content?.parts ?? 0
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
    this.#warn(record.path, content.warnings)
    const partsBefore = record.content?.parts ?? 0
    const { refusals, otherKinds, otherNodes, parts } = content
    record.content = { refusals, otherKinds, otherNodes, parts }
    if (parts < partsBefore) this.#retryFailed()
    if (record.failure === undefined) return
    record.failure = undefined
    this.#report('recovered', record.path, 'the file is read again')
  }

  /** Reports each warning about a file once, however often the file changes. */
  #warn(path: string, warnings: FileObjects['warnings']): void {
    for (const { kind, line, text } of warnings) {
      const name = `${path} ${text}`
      if (this.#warned.has(name) || this.#warned.size >= WARNINGS_MAX) continue
      this.#warned.add(name)
      this.#report(kind, `${path}:${line}`, text)
    }
  }

  #fail(record: FileRecord, reason: string, position = ''): void {
    const location = `${record.path}${position}`
    const failure = `${location}: ${reason}`
    if (record.failure === failure) return
    record.failure = failure
    this.#reportFailure(location, reason, this.#meanwhile(this.#catalogue.objectsOf(record.path)))
  }

  #miss(record: FileRecord): void {
    if (record.presence === 'there') {
      record.presence = 'missed'
      return
    }
    const isNews = record.presence === 'missed'
    record.presence = 'gone'
    if (isNews) this.#apply(this.#catalogue.vanish(record.path))
    const left = this.#catalogue.objectsOf(record.path)
    if (left === 0) {
      this.#records.delete(record.path)
      this.#retryFailed()
    } else if (isNews) this.#reportFailure(record.path, 'file deleted', this.#meanwhile(left) + GONE_ADVICE)
  }

  /** A file that was too large beside the others may fit now. */
  #retryFailed(): void {
    for (const record of this.#records.values()) if (record.failure !== undefined) record.read = undefined
  }

  #found(record: FileRecord): void {
    const wasGone = record.presence === 'gone'
    record.presence = 'there'
    if (!wasGone) return
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

  /** Hands over everything that one check has found, in one piece. */
  async #hand(handlers: SourceHandlers, skipped: readonly string[]): Promise<void> {
    const batch = this.#changes
    this.#changes = []
    if (batch.length > 0) await handlers.events(batch)
    this.#tellRefusals(handlers)
    const records = [...this.#records.values()]
    const read = records.flatMap(({ path, content, failure }) =>
      content === undefined || failure !== undefined ? [] : { path, ...content },
    )
    if (this.#synced || read.length < records.length) return
    this.#synced = true
    if (this.#catalogue.size === 0 && read.every(({ refusals }) => refusals.length === 0))
      this.#report('empty', this.#options.path, nothingFound(read, skipped))
    handlers.synced()
  }

  #tellRefusals(handlers: SourceHandlers): void {
    const list: LocatedRefusal[] = []
    for (const { path, content } of this.#records.values())
      for (const refusal of content?.refusals ?? []) list.push({ location: path, refusal })
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
    if (kept > 0) return `the last valid content stays in use (${count(kept, 'object')})`
    return this.#synced ? 'the whole file is ignored' : 'kprobe waits until it has read every file once'
  }

  #reportFailure(location: string, text: string, meanwhile: string): void {
    this.#handlers?.problem({ kind: 'failed', location, text, meanwhile })
  }

  #report(kind: Exclude<SourceProblem['kind'], 'failed'>, location: string, text: string): void {
    this.#handlers?.problem({ kind, location, text })
  }
}

const GONE_ADVICE = '. To remove its objects, write a file that has only a comment, or restart kprobe'
