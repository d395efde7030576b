import { type BackoffOptions, backoffMs, type Clock, Pacer } from '../base/clock.ts'
import type { ServiceKey } from '../model/service.ts'
import {
  creation,
  type EventFact,
  type EventIdentity,
  type EventObject,
  type EventSeries,
  type EventWrite,
  identityOf,
  regardingText,
  repetition,
} from './event.ts'

export type PostResult =
  /** 2xx, and 409 of a POST: the event exists. */
  | 'taken'
  /** No answer, 429 or 5xx. */
  | 'retry'
  /** The server refuses the event for good (403, 422). */
  | 'refused'
  /** 404 of a PATCH: the server has deleted the event. */
  | 'absent'

interface EventRecorderOptions {
  readonly clock: Clock
  readonly wallMs: () => number
  readonly random: () => number
  readonly nodeName: string
  readonly uidOf: (service: ServiceKey) => string
  /** Never rejects: a write that cannot be sent gives 'retry'. */
  readonly post: (write: EventWrite) => Promise<PostResult>
  /** An event is lost; reported once a minute at most. */
  readonly lost: (why: 'refused' | 'retries' | 'limit', regarding: string, reason: string) => void
}

interface EventCounts {
  readonly taken: number
  readonly refused: number
  /** Events dropped because of a limit, or after too many retries. */
  readonly dropped: number
  readonly waiting: number
}

const QUEUE_MAX = 100
const SERIES_MAX = 512
/** A fact that recurs after this long starts a new event (as in client-go). */
const SERIES_ENDS_MS = 360_000
/** Minimum time between two writes of the count of a series. */
const SERIES_WRITE_MS = 60_000
const RETRY: Omit<BackoffOptions, 'random'> = { minMs: 1_000, maxMs: 60_000 }

/**
 * Posts events about this node to the API server. Equal facts become one event with a count; their number, the
 * queue and the retries are bounded, and the excess is counted. One write at a time; no caller waits for it.
 */
export class EventRecorder {
  readonly #options: EventRecorderOptions
  readonly #instance: string
  readonly #bucket: TokenBucket
  readonly #series = new Map<string, Series>()
  readonly #queue: Series[] = []
  #number = 0
  #taken = 0
  #refused = 0
  #dropped = 0
  #complaintMs = Number.NEGATIVE_INFINITY
  readonly #writes: Pacer
  readonly #seriesWrites: Pacer

  constructor(options: EventRecorderOptions) {
    this.#options = options
    // The API server accepts 128 letters.
    this.#instance = `kube-proxy-${options.nodeName}`.slice(0, 128)
    const { clock } = options
    // First writes of facts: 25 at once, then one every 10 s.
    this.#bucket = new TokenBucket({ size: 25, refillMs: 10_000, nowMs: () => clock.nowMs() })
    this.#writes = new Pacer({ clock, run: () => this.#writeAll() })
    this.#seriesWrites = new Pacer({ clock, run: () => this.#enqueueSeries() })
  }

  get counts(): EventCounts {
    return { taken: this.#taken, refused: this.#refused, dropped: this.#dropped, waiting: this.#queue.length }
  }

  record(fact: EventFact): void {
    if (this.#writes.isStopped) return
    const nowMs = this.#options.clock.nowMs()
    const uid = this.#uidOf(fact.regarding)
    const key = keyOf(fact, uid)
    const known = this.#series.get(key)
    if (known !== undefined && nowMs - known.lastMs < SERIES_ENDS_MS) this.#repeat(known, nowMs)
    else this.#first({ key, fact, uid }, nowMs)
  }

  /** Drops the queue. Resolves when no write is in progress. */
  async stop(): Promise<void> {
    this.#queue.length = 0
    await Promise.all([this.#writes.stop(), this.#seriesWrites.stop()])
  }

  /** kubelet uses the name of a Node as the uid in its events, and `kubectl describe node` selects by it. */
  #uidOf(object: EventObject): string {
    return object.kind === 'Node' ? object.name : this.#options.uidOf(object.key)
  }

  #first({ key, fact, uid }: Pick<Series, 'key' | 'fact' | 'uid'>, nowMs: number): void {
    if (this.#queue.length >= QUEUE_MAX || !this.#bucket.take()) {
      this.#drop('limit', fact)
      return
    }
    const wallMs = this.#options.wallMs()
    const identity = identityOf(fact.regarding, wallMs, this.#number++)
    const series: Series = {
      key,
      fact,
      uid,
      identity,
      firstWallMs: wallMs,
      lastWallMs: wallMs,
      lastMs: nowMs,
      count: 1,
      writtenCount: 0,
      tries: 0,
      queued: false,
    }
    this.#series.delete(key)
    this.#series.set(key, series)
    this.#forgetOldest(nowMs)
    this.#enqueue(series)
  }

  #repeat(series: Series, nowMs: number): void {
    series.count++
    series.lastMs = nowMs
    series.lastWallMs = this.#options.wallMs()
    if (series.count === 2) this.#enqueue(series)
    else this.#seriesWrites.wake(SERIES_WRITE_MS)
  }

  #enqueueSeries(): undefined {
    for (const series of this.#series.values())
      if (series.count > series.writtenCount && series.writtenCount > 0) this.#enqueue(series)
  }

  #enqueue(series: Series): void {
    if (series.queued || this.#writes.isStopped) return
    if (this.#queue.length >= QUEUE_MAX) {
      this.#seriesWrites.wake(SERIES_WRITE_MS)
      return
    }
    series.queued = true
    this.#queue.push(series)
    this.#writes.wake()
  }

  /** Removes series that have ended, and above the limit the oldest ones. */
  #forgetOldest(nowMs: number): void {
    for (const [key, { lastMs }] of this.#series) {
      if (this.#series.size <= SERIES_MAX && nowMs - lastMs < SERIES_ENDS_MS) return
      this.#series.delete(key)
    }
  }

  /** Gives the time to the retry of a write that got no answer. */
  async #writeAll(): Promise<number | undefined> {
    const { random } = this.#options
    for (let series = this.#queue[0]; series !== undefined; series = this.#queue[0]) {
      const result = await this.#write(series)
      if (this.#writes.isStopped) return undefined
      // Twelve tries, as in client-go (maxTriesPerEvent).
      if (result === 'retry' && series.tries < 12) {
        this.#writes.rest(backoffMs(series.tries, { ...RETRY, random }))
        return 0
      }
      this.#queue.shift()
      series.queued = false
      series.tries = 0
      this.#settle(series, result)
    }
    return undefined
  }

  /** Writes a repetition as a new event if the server has deleted the old one. */
  async #write(series: Series): Promise<PostResult> {
    const { fact, uid, firstWallMs, count, lastWallMs, writtenCount } = series
    const counted: EventSeries | undefined = count > 1 ? { count, lastWallMs } : undefined
    const at = { instance: this.#instance, uid, firstWallMs, series: counted }
    series.tries++
    const isNew = writtenCount === 0 || counted === undefined
    let result = await this.#options.post(
      isNew ? creation(fact, series.identity, at) : repetition(series.identity, counted),
    )
    if (result === 'absent' && !isNew) {
      series.identity = identityOf(fact.regarding, this.#options.wallMs(), this.#number++)
      result = await this.#options.post(creation(fact, series.identity, at))
    }
    if (result === 'taken') series.writtenCount = count
    return result
  }

  #settle(series: Series, result: PostResult): void {
    if (result === 'taken') {
      this.#taken++
      if (series.count > series.writtenCount) this.#seriesWrites.wake(SERIES_WRITE_MS)
      return
    }
    this.#series.delete(series.key)
    if (result === 'retry') this.#drop('retries', series.fact)
    else {
      this.#refused++
      this.#complain('refused', series.fact)
    }
  }

  #drop(why: 'retries' | 'limit', fact: EventFact): void {
    this.#dropped++
    this.#complain(why, fact)
  }

  #complain(why: 'refused' | 'retries' | 'limit', fact: EventFact): void {
    const nowMs = this.#options.clock.nowMs()
    // A line a minute.
    if (nowMs - this.#complaintMs < 60_000) return
    this.#complaintMs = nowMs
    this.#options.lost(why, regardingText(fact.regarding), fact.reason)
  }
}

interface Series {
  readonly key: string
  readonly fact: EventFact
  readonly uid: string
  identity: EventIdentity
  readonly firstWallMs: number
  lastWallMs: number
  lastMs: number
  count: number
  /** The count of the last accepted write; 0 before the first. */
  writtenCount: number
  tries: number
  queued: boolean
}

/** Includes the uid: a Service that is created again has events of its own. */
function keyOf({ type, reason, action, note, regarding }: EventFact, uid: string): string {
  return [type, reason, action, regardingText(regarding), uid, note].join('\0')
}

interface TokenBucketOptions {
  readonly size: number
  readonly refillMs: number
  readonly nowMs: () => number
}

export class TokenBucket {
  readonly #options: TokenBucketOptions
  #tokens: number
  #atMs: number

  constructor(options: TokenBucketOptions) {
    this.#options = options
    this.#tokens = options.size
    this.#atMs = options.nowMs()
  }

  take(): boolean {
    const { size, refillMs, nowMs } = this.#options
    const now = nowMs()
    this.#tokens = Math.min(size, this.#tokens + (now - this.#atMs) / refillMs)
    this.#atMs = now
    if (this.#tokens < 1) return false
    this.#tokens--
    return true
  }

  /** Takes tokens for what an action turned out to cost, even more than there are. */
  charge(tokens: number): void {
    this.#tokens -= tokens
  }
}
