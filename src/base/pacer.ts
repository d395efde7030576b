import type { Cancel, Clock } from './clock.ts'

/** Timers of Node.js count whole milliseconds, and may be early by a part of one. */
const TIMER_EARLY_MS = 1

interface PacerOptions {
  readonly clock: Clock
  /** One run. Gives the milliseconds until the next; undefined if only a wake leads to one. Must not reject. */
  readonly run: () => Promise<number | undefined> | number | undefined
}

/**
 * Decides when repeated work runs: when it is woken, or when the time comes that the last run gave; the earliest wins. Runs
 * never overlap, and a rest between them is kept whatever wakes them.
 */
export class Pacer {
  readonly #options: PacerOptions
  /** Monotonic milliseconds, as all times here. */
  #dueMs = Number.POSITIVE_INFINITY
  #restUntilMs = Number.NEGATIVE_INFINITY
  #failures = 0
  #timer: { readonly atMs: number; readonly cancel: Cancel } | undefined
  #isRunning = false
  /** End the waits for an idle moment. */
  readonly #waiters = new Set<() => void>()
  #lastRun: Promise<void> = Promise.resolve()
  #isStopped = false

  constructor(options: PacerOptions) {
    this.#options = options
  }

  get isRunning(): boolean {
    return this.#isRunning
  }

  get isStopped(): boolean {
    return this.#isStopped
  }

  /** Tests whether a wake has to wait for the end of a run or of a rest. */
  get isBusy(): boolean {
    return this.#isRunning || this.#options.clock.nowMs() < this.#restUntilMs
  }

  /** Tests whether a rest is in progress or ended within this time, or a run is in progress. */
  isBusyOrWas(withinMs: number): boolean {
    return this.#isRunning || this.#options.clock.nowMs() < this.#restUntilMs + withinMs
  }

  /** Requests a run within this time. A run that may begin now begins before this returns. */
  wake(withinMs = 0): void {
    const nowMs = this.#options.clock.nowMs()
    this.#dueMs = Math.min(this.#dueMs, nowMs + withinMs)
    if (withinMs <= 0 && !this.isBusy && !this.#isStopped) this.#launch()
    else this.#arm(nowMs)
  }

  /** Forgets the requests so far. A run in progress goes on. */
  cancel(): void {
    this.#dueMs = Number.POSITIVE_INFINITY
    this.#disarm()
    this.#arm(this.#options.clock.nowMs())
  }

  /** Lets no run begin for this time. A longer rest stays. */
  rest(ms: number): void {
    this.#restUntilMs = Math.max(this.#restUntilMs, this.#options.clock.nowMs() + ms)
  }

  /** Resolves when the rest is over. */
  rested(): Promise<void> {
    const { clock } = this.#options
    const leftMs = this.#restUntilMs - clock.nowMs()
    return leftMs <= 0 ? Promise.resolve() : new Promise(resolve => void clock.after(leftMs, resolve))
  }

  /**
   * Resolves when neither a run nor a rest is in progress, but after this time at the latest; before a run that was
   * requested meanwhile, which waits for one turn of the event loop.
   */
  idle(limitMs: number): Promise<void> {
    if (!this.isBusy || this.#isStopped) return Promise.resolve()
    const { clock } = this.#options
    return new Promise(resolve => {
      const cancel = clock.after(limitMs, () => {
        this.#waiters.delete(end)
        resolve()
      })
      const end = (): void => {
        cancel()
        resolve()
      }
      this.#waiters.add(end)
      this.#arm(clock.nowMs())
    })
  }

  /** Requests a retry after a rest that grows with each failure in a row. Gives the rest, in milliseconds. */
  failed(backoff: BackoffOptions): number {
    const restMs = backoffMs(++this.#failures, backoff)
    this.rest(restMs)
    this.wake()
    return restMs
  }

  succeeded(): void {
    this.#failures = 0
  }

  /** Lets no run begin any more. Resolves at the end of a run in progress. */
  async stop(): Promise<void> {
    this.#isStopped = true
    this.#disarm()
    await this.#lastRun.catch(() => undefined)
  }

  #arm(nowMs: number): void {
    const hasWaiters = this.#waiters.size > 0
    if (this.#isStopped || this.#isRunning || (this.#dueMs === Number.POSITIVE_INFINITY && !hasWaiters))
      return
    const atMs = Math.max(hasWaiters ? nowMs : this.#dueMs, this.#restUntilMs)
    if (this.#timer?.atMs === atMs) return
    this.#disarm()
    // To the microsecond, because sums of times are inexact. Never 0 before the time: a run that finds itself early would
    // request the next one at once, without end where time stands still meanwhile.
    const delayMs = atMs <= nowMs ? 0 : Math.max(1, Math.round((atMs - nowMs) * 1_000)) / 1_000
    const cancel = this.#options.clock.after(delayMs, () => {
      this.#timer = undefined
      if (this.#waiters.size === 0) this.#launch()
      else this.#endWaits()
    })
    this.#timer = { atMs, cancel }
  }

  /** The waits end, if the rest is over; what is due follows by the timer. */
  #endWaits(): void {
    const nowMs = this.#options.clock.nowMs()
    if (this.#restUntilMs - nowMs < TIMER_EARLY_MS) {
      this.#restUntilMs = Math.min(this.#restUntilMs, nowMs)
      const waiters = [...this.#waiters]
      this.#waiters.clear()
      for (const end of waiters) end()
    }
    this.#arm(nowMs)
  }

  #disarm(): void {
    this.#timer?.cancel()
    this.#timer = undefined
  }

  #launch(): void {
    this.#isRunning = true
    this.cancel()
    this.#lastRun = this.#run()
  }

  async #run(): Promise<void> {
    let nextMs: number | undefined
    try {
      nextMs = await this.#options.run()
    } finally {
      this.#isRunning = false
      const nowMs = this.#options.clock.nowMs()
      if (nextMs !== undefined) this.#dueMs = Math.min(this.#dueMs, nowMs + nextMs)
      // By the timer even if the next run is due: other work of the event loop goes first.
      this.#arm(nowMs)
    }
  }
}

/** Exponential delays with full jitter over the upper half: never less than half of the step, never above `maxMs`. */
export interface BackoffOptions {
  readonly minMs: number
  readonly maxMs: number
  /** Uniform in [0, 1). */
  readonly random: () => number
}

/** Delay before try number `failures` + 1, in milliseconds; `failures` counts from 1. */
export function backoffMs(failures: number, options: BackoffOptions): number {
  const step = Math.min(options.maxMs, options.minMs * 2 ** Math.min(failures - 1, 30))
  return step / 2 + (options.random() * step) / 2
}
