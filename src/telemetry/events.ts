import { type BackoffOptions, backoffMs, type Clock, Pacer } from '../base/clock.ts'
import type { ServiceKey } from '../model/service.ts'
import {
  creation,
  type EventFact,
  type EventObject,
  type EventWrite,
  identityOf,
  regardingText,
} from './event.ts'

export type PostResult =
  /** 2xx, and 409: the event exists. */
  | 'taken'
  /** No answer, 429 or 5xx. */
  | 'retry'
  /** The server refuses the event for good (403, 422). */
  | 'refused'

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
/** Facts that are remembered. */
const FACTS_MAX = 512
/** A fact that recurs within this time has its event already (client-go begins another series after it). */
const SAME_MS = 360_000
const RETRY: Omit<BackoffOptions, 'random'> = { minMs: 1_000, maxMs: 60_000 }

interface Waiting {
  readonly key: string
  readonly fact: EventFact
  readonly write: EventWrite
}

/**
 * Posts events about this node to the API server: one for equal facts of six minutes. Their number, the queue and the
 * retries are bounded, and the excess is counted. One write at a time; no caller waits for it.
 */
export class EventRecorder {
  readonly #options: EventRecorderOptions
  readonly #instance: string
  readonly #bucket: TokenBucket
  /** The times of the last events by their facts, the oldest first. */
  readonly #recorded = new Map<string, number>()
  readonly #queue: Waiting[] = []
  #number = 0
  #tries = 0
  #taken = 0
  #refused = 0
  #dropped = 0
  #complaintMs = Number.NEGATIVE_INFINITY
  readonly #writes: Pacer

  constructor(options: EventRecorderOptions) {
    this.#options = options
    // The API server accepts 128 letters.
    this.#instance = `kube-proxy-${options.nodeName}`.slice(0, 128)
    const { clock } = options
    // 25 at once, then one every 10 s.
    this.#bucket = new TokenBucket({ size: 25, refillMs: 10_000, nowMs: () => clock.nowMs() })
    this.#writes = new Pacer({ clock, run: () => this.#writeAll() })
  }

  get counts(): EventCounts {
    return { taken: this.#taken, refused: this.#refused, dropped: this.#dropped, waiting: this.#queue.length }
  }

  record(fact: EventFact): void {
    if (this.#writes.isStopped) return
    const nowMs = this.#options.clock.nowMs()
    const uid = this.#uidOf(fact.regarding)
    const key = `${topicOf(fact, uid)}${fact.reason}\0${fact.note}`
    if (nowMs - (this.#recorded.get(key) ?? Number.NEGATIVE_INFINITY) < SAME_MS) return
    if (this.#queue.length >= QUEUE_MAX || !this.#bucket.take()) {
      this.#drop('limit', fact)
      return
    }
    const wallMs = this.#options.wallMs()
    const identity = identityOf(fact.regarding, wallMs, this.#number++)
    this.#recorded.delete(key)
    this.#recorded.set(key, nowMs)
    this.#forgetOpposites(fact, uid)
    this.#forgetOldest(nowMs)
    this.#queue.push({
      key,
      fact,
      write: creation(fact, { identity, instance: this.#instance, uid, wallMs }),
    })
    this.#writes.wake()
  }

  /** Drops the queue. Resolves when no write is in progress. */
  async stop(): Promise<void> {
    this.#queue.length = 0
    await this.#writes.stop()
  }

  /** kubelet uses the name of a Node as the uid in its events, and `kubectl describe node` selects by it. */
  #uidOf(object: EventObject): string {
    return object.kind === 'Node' ? object.name : this.#options.uidOf(object.key)
  }

  /** Forgets the Warnings that a Normal event ends, or the end that a Warning follows: the last state gets an event. */
  #forgetOpposites(fact: EventFact, uid: string): void {
    const opposites = topicOf({ ...fact, type: fact.type === 'Normal' ? 'Warning' : 'Normal' }, uid)
    for (const key of this.#recorded.keys()) if (key.startsWith(opposites)) this.#recorded.delete(key)
  }

  #forgetOldest(nowMs: number): void {
    for (const [key, atMs] of this.#recorded) {
      if (this.#recorded.size <= FACTS_MAX && nowMs - atMs < SAME_MS) return
      this.#recorded.delete(key)
    }
  }

  /** Gives the time to the retry of a write that got no answer. */
  async #writeAll(): Promise<number | undefined> {
    const { random, post } = this.#options
    for (let next = this.#queue[0]; next !== undefined; next = this.#queue[0]) {
      const result = await post(next.write)
      if (this.#writes.isStopped) return undefined
      // Twelve tries, as in client-go (maxTriesPerEvent).
      if (result === 'retry' && ++this.#tries < 12) {
        this.#writes.rest(backoffMs(this.#tries, { ...RETRY, random }))
        return 0
      }
      this.#queue.shift()
      this.#tries = 0
      this.#settle(next, result)
    }
    return undefined
  }

  #settle({ key, fact }: Waiting, result: PostResult): void {
    if (result === 'taken') {
      this.#taken++
      return
    }
    this.#recorded.delete(key)
    if (result === 'retry') this.#drop('retries', fact)
    else {
      this.#refused++
      this.#complain('refused', fact)
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

/** Includes the uid: a Service that is created again has events of its own. */
function topicOf({ type, action, regarding }: EventFact, uid: string): string {
  return [regardingText(regarding), uid, action, type, ''].join('\0')
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
