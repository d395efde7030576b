/** Time, injected: durations come from a monotonic source, never from the wall clock. */
export interface Clock {
  /** Monotonic milliseconds since an arbitrary origin. */
  nowMs(): number
  /** Processor time of this process so far, of all its threads and in the kernel; milliseconds. */
  cpuMs(): number
  /** Calls `run` once after `delayMs`; the result cancels it. */
  after(delayMs: number, run: () => void): Cancel
  /** Resolves once the event loop has served what was waiting. */
  breathe(): Promise<void>
}

export type Cancel = () => void

/** The time of this machine. */
export const systemClock: Clock = {
  nowMs: () => performance.now(),
  cpuMs() {
    const { user, system } = process.cpuUsage()
    return (user + system) / 1_000
  },
  after(delayMs, run) {
    const timer = setTimeout(run, delayMs)
    return () => clearTimeout(timer)
  },
  breathe: () => new Promise(resolve => setImmediate(resolve)),
}

/** Waits for `work`, but no longer than this; false when it took longer. What `work` throws is passed on. */
export async function within(clock: Clock, limitMs: number, work: Promise<void>): Promise<boolean> {
  let cancel: Cancel | undefined
  const late = new Promise<boolean>(done => {
    cancel = clock.after(limitMs, () => done(false))
  })
  try {
    return await Promise.race([work.then(() => true), late])
  } finally {
    cancel?.()
  }
}

/** Runs with a signal that aborts with another one, after this time, and at the end of the run. */
export async function runWithin<T>(
  clock: Clock,
  { limitMs, signal }: { readonly limitMs: number; readonly signal: AbortSignal },
  run: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const controller = new AbortController()
  const abort = () => controller.abort()
  const cancel = clock.after(limitMs, abort)
  signal.addEventListener('abort', abort)
  if (signal.aborted) abort()
  try {
    return await run(controller.signal)
  } finally {
    cancel()
    signal.removeEventListener('abort', abort)
    abort()
  }
}

/** Waits for this long, or until the signal aborts. */
export function pause(clock: Clock, ms: number, signal: AbortSignal): Promise<void> {
  return new Promise(resolve => {
    const end = () => {
      cancel()
      signal.removeEventListener('abort', end)
      resolve()
    }
    const cancel = clock.after(ms, end)
    signal.addEventListener('abort', end, { once: true })
    if (signal.aborted) end()
  })
}

/**
 * A pure computation that offers to pause: it yields wherever stopping is harmless and returns its value at the end.
 * Callers decide whether to run it in one go or in slices between which the event loop breathes.
 */
export type Steps<T> = Generator<undefined, T, undefined>

/** Runs to the end without a pause. */
export function finish<T>(steps: Steps<T>): T {
  for (;;) {
    const step = steps.next()
    if (step.done === true) return step.value
  }
}

/** Makes a result item by item: callers may pause between two items. */
export function* stepsOver<I, T>(
  items: Iterable<I>,
  { each, result }: { readonly each: (item: I) => void; readonly result: () => T },
): Steps<T> {
  for (const item of items) {
    each(item)
    yield
  }
  return result()
}

export function atOnce<T>(result: () => T): Steps<T> {
  return stepsOver([], { each: () => undefined, result })
}

/** A loop offers to pause after so many items: a few ms of the heaviest; for the lightest, the offer costs 1 %. */
const ITEMS = 256

/** Counts the items of a loop: `if (pauses.due()) yield`. */
export class Pauses {
  #left = ITEMS

  /** Tests whether it is time to offer a pause after these items. */
  due(items = 1): boolean {
    this.#left -= items
    if (this.#left > 0) return false
    this.#left = ITEMS
    return true
  }
}

export interface Slicing {
  /** Longest time to compute before yielding to the event loop, in milliseconds. */
  readonly sliceMs: number
  /** Monotonic milliseconds. */
  readonly nowMs: () => number
  /** Resolves once other work of the event loop has had its turn. */
  readonly breathe: () => Promise<void>
}

/** A slice of time for a loop that is asynchronous in any case: `if (slice.isOver) await slice.next()`. */
export class Slice {
  readonly #slicing: Slicing
  #endMs: number

  constructor(slicing: Slicing) {
    this.#slicing = slicing
    this.#endMs = slicing.nowMs() + slicing.sliceMs
  }

  get isOver(): boolean {
    return this.#slicing.nowMs() >= this.#endMs
  }

  async next(): Promise<void> {
    await this.#slicing.breathe()
    this.#endMs = this.#slicing.nowMs() + this.#slicing.sliceMs
  }
}

/** Runs to the end in slices. Errors thrown by the computation reject the promise. */
export async function finishInSlices<T>(steps: Steps<T>, slicing: Slicing): Promise<T> {
  const slice = new Slice(slicing)
  for (;;) {
    const step = steps.next()
    if (step.done === true) return step.value
    if (slice.isOver) await slice.next()
  }
}

/** Slices that are short enough for health requests in between, by this clock. */
export function slicingOf(clock: Pick<Clock, 'nowMs' | 'breathe'>): Slicing {
  return { sliceMs: 5, nowMs: () => clock.nowMs(), breathe: () => clock.breathe() }
}

/** The part of the time that repeated work may take. */
export interface Pace {
  /** Maximum share of the time: of the wall clock, or of one processor, as the work is measured. */
  readonly share: number
  /** Bounds of the rest, milliseconds. Beyond the upper one, the work takes more than its share. */
  readonly minMs?: number
  readonly maxMs?: number
}

/** Share of a processor for programming the kernel while changes keep coming, unless configured. */
export const SYNC_SHARE = 0.025
/** Maximum rest between two passes over the kernel: a change waits for this and one pass at most. */
export const SYNC_REST_MS_MAX = 250
/** Maximum time for which a source keeps changes back, for passes that are stuck: longer than a slow pass and its rest. */
export const HOLD_MS_MAX = 1_000

/** Milliseconds that work rests after it took `tookMs`, so that it takes less than its share of the time. */
export function restMs(tookMs: number, { share, minMs = 0, maxMs = Number.POSITIVE_INFINITY }: Pace): number {
  return Math.max(minMs, Math.min(tookMs / share, maxMs))
}

/** Timers of Node.js count whole milliseconds, and may be early by a part of one. */
const TIMER_EARLY_MS = 1
/** A run that is due waits so long for callers that waited for an idle moment: what they bring is part of it. */
const GRACE_MS = 50

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
  /** These functions end waits for an idle moment. */
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

  /** Forgets the requests so far. A run in progress continues. */
  cancel(): void {
    this.#dueMs = Number.POSITIVE_INFINITY
    this.#disarm()
    this.#arm(this.#options.clock.nowMs())
  }

  /** Lets no run begin for this time. A longer rest stays. */
  rest(ms: number): void {
    this.#restUntilMs = Math.max(this.#restUntilMs, this.#options.clock.nowMs() + ms)
  }

  /** Ends a rest at this time, in monotonic milliseconds, if it is longer. */
  restUntil(ms: number): void {
    this.#restUntilMs = Math.min(this.#restUntilMs, ms)
  }

  rested(): Promise<void> {
    const { clock } = this.#options
    const leftMs = this.#restUntilMs - clock.nowMs()
    return leftMs <= 0 ? Promise.resolve() : new Promise(resolve => void clock.after(leftMs, resolve))
  }

  /**
   * Resolves at the end of the run and of the rest, or after `limitMs` if that is earlier. A run that is due then begins
   * when the caller wakes it, or after 50 ms.
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
    for (const end of this.#waiters) end()
    this.#waiters.clear()
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
      const isDue = this.#dueMs - this.#options.clock.nowMs() < TIMER_EARLY_MS
      if (isDue && this.#waiters.size === 0) this.#launch()
      else this.#endWaits()
    })
    this.#timer = { atMs, cancel }
  }

  /** The waits end, if the rest is over. What is due follows by a wake or the timer. */
  #endWaits(): void {
    const nowMs = this.#options.clock.nowMs()
    if (this.#restUntilMs - nowMs < TIMER_EARLY_MS) {
      this.#restUntilMs = Math.min(this.#restUntilMs, nowMs)
      const waiters = [...this.#waiters]
      this.#waiters.clear()
      if (waiters.length > 0) this.#dueMs = Math.max(this.#dueMs, nowMs + GRACE_MS)
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
