import { type Clock, Pacer } from '../base/clock.ts'
import { errorOf } from '../base/errors.ts'
import { commitsBetween, type Generation, type GenerationWatch, type WriterCommit } from './dataplane.ts'

interface DriftOptions {
  readonly clock: Clock
  /** Interval of the checks of the generation, milliseconds. */
  readonly pollMs: number
  readonly generation: () => Generation
  /** As in Dataplane. Without it, a timer checks the generation every `pollMs`. */
  readonly watchGeneration: (everyMs: number, changed: () => void) => GenerationWatch | undefined
  /** A pass is running: whether the generation moved by a commit of ours is not known before it ends. */
  readonly busy: () => boolean
  readonly watchWriters: (report: (commit: WriterCommit) => void) => () => void
  /** The kernel may differ from what we left there. */
  readonly onDrift: (sign: DriftSign) => void
  /** The generation cannot be read, or commits not be watched. */
  readonly onError: (error: Error) => void
  /** The error of the last `onError` is over, or its consequences are made up for. */
  readonly onRecovered: () => void
}

interface DriftSign {
  readonly generation: Generation
  /** `nft (pid 1234)`; undefined without a subscription. */
  readonly process: string | undefined
  /** True when a notification shows that one of our objects was touched; otherwise it is only possible. */
  readonly certain: boolean
}

/** Foreign commits within RECURRENCE_MS, or longer where reads take long, that make a subscription worth its price. */
const RECURRENCES = 3
const RECURRENCE_MS = 10_000
/** A subscription ends this long after the last foreign commit. */
const SUBSCRIPTION_MS = 60_000
/** Foreign commits count together within this multiple of a read's duration: reads take a few percent of the time at most. */
const READS_APART = 100

/**
 * A notification that is missing for so many polls is lost. The kernel moves the generation on before it notifies, and the
 * program that commits may have to wait for a processor in between.
 */
const LATE_POLLS = 3

/** The generation counts as unreadable when so many reads in a row fail: the next check makes up for a single one. */
const FAILURES = 2
/**
 * Notices commits by others: has the generation compared every `pollMs`, and only when foreign commits come back
 * subscribes for a while, since only a notification names the process and the tables that it changed.
 */
export class DriftDetector {
  readonly #options: DriftOptions
  #expected: Generation | undefined
  /** Another program committed between our last check and our commit. */
  #suspicious = false
  readonly #checks: Pacer
  #isStarted = false
  #generationWatch: GenerationWatch | undefined
  #recent: number[] = []
  #unsubscribe: (() => void) | undefined
  #subscribedUntilMs = 0
  /** The generation up to which every commit was reported or checked; undefined once one was missed. */
  #accounted: Generation | undefined
  /** The generation of a check at which not every commit was accounted for, and when that was. */
  #awaited: { readonly generation: Generation; readonly sinceMs: number } | undefined
  #readMs = 0
  /** Failed reads of the generation in a row, and whether they are reported. */
  #failures = 0
  #isReported = false
  #reportedMs = Number.NEGATIVE_INFINITY

  constructor(options: DriftOptions) {
    this.#options = options
    this.#checks = new Pacer({ clock: options.clock, run: () => this.#tick() })
  }

  /** Begins the checks. The expected generation is known by then. */
  start(): void {
    if (this.#isStarted) return
    this.#isStarted = true
    this.#watch()
    this.#checks.wake(this.#options.pollMs)
  }

  /** We read or committed, and the generation is now this; `foreign` if others may have committed unseen before it. */
  expect(generation: Generation, foreign: boolean): void {
    this.#expected = generation
    this.#suspicious ||= foreign
    if (foreign && this.#isStarted) this.#checks.wake(this.#options.pollMs)
    this.#expectExpected()
    // Our own commits cause no notification.
    if (!foreign && this.#accounted !== undefined && commitsBetween(this.#accounted, generation) === 1)
      this.#accounted = generation
  }

  /** Notes the time that a read of the kernel and its comparison with the wanted state took. */
  noteRead(durationMs: number): void {
    this.#readMs = durationMs
  }

  stop(): void {
    void this.#checks.stop()
    this.#generationWatch?.stop()
    this.#generationWatch = undefined
    this.#leave()
  }

  check(): void {
    const { generation: read, clock, onDrift, onRecovered } = this.#options
    let generation: Generation
    try {
      generation = read()
    } catch (thrown) {
      this.#failures++
      if (this.#failures >= FAILURES && !this.#isReported) this.#isReported = this.#report(thrown)
      return
    }
    if (this.#isReported) onRecovered()
    this.#isReported = false
    this.#failures = 0
    if (this.#unsubscribe !== undefined && clock.nowMs() >= this.#subscribedUntilMs) this.#leave()
    if (generation === this.#expected && !this.#suspicious) return
    if (this.#unsubscribe !== undefined && this.#isAccounted(generation)) return
    this.#expected = generation
    this.#suspicious = false
    this.#recur()
    // The read that follows covers everything up to here.
    this.#accounted = generation
    onDrift({ generation, process: undefined, certain: false })
  }

  /** Tests whether the subscription has reported every commit up to this one, or may do so within LATE_POLLS. */
  #isAccounted(generation: Generation): boolean {
    if (this.#accounted === undefined) return false
    if (this.#accounted === generation) {
      this.#expected = generation
      this.#suspicious = false
      this.#awaited = undefined
      return true
    }
    const { clock, pollMs } = this.#options
    const awaited = this.#awaited
    if (awaited === undefined || commitsBetween(awaited.generation, this.#accounted) >= 0)
      this.#awaited = { generation, sinceMs: clock.nowMs() }
    else if (clock.nowMs() >= awaited.sinceMs + LATE_POLLS * pollMs) this.#awaited = undefined
    return this.#awaited !== undefined
  }

  /** Reports an error once a minute at most, although reads succeed in between. */
  #report(thrown: unknown): boolean {
    const { clock, onError } = this.#options
    if (clock.nowMs() < this.#reportedMs + 60_000) return false
    this.#reportedMs = clock.nowMs()
    onError(errorOf(thrown))
    return true
  }

  #watch(): void {
    const { pollMs, watchGeneration, onRecovered } = this.#options
    try {
      this.#generationWatch = watchGeneration(pollMs, () => this.#checks.wake())
    } catch (error) {
      // The timer checks instead.
      if (this.#report(error)) onRecovered()
    }
  }

  #tick(): number | undefined {
    const isBusy = this.#options.busy()
    if (!isBusy) this.check()
    this.#expectExpected()
    // From here on, only a change of the generation requires a check.
    return this.#generationWatch !== undefined && !isBusy && this.#isSettled
      ? undefined
      : this.#options.pollMs
  }

  /** Lets the watch be silent about the expected generation, unless a check has to follow in any case. */
  #expectExpected(): void {
    if (this.#expected !== undefined && this.#isSettled) this.#generationWatch?.expect(this.#expected)
  }

  get #isSettled(): boolean {
    return !this.#suspicious && this.#failures === 0 && this.#unsubscribe === undefined
  }

  #recur(): void {
    const now = this.#options.clock.nowMs()
    const togetherMs = Math.max(RECURRENCE_MS, READS_APART * this.#readMs)
    this.#recent = [...this.#recent.filter(at => now - at < togetherMs), now].slice(-RECURRENCES)
    if (this.#recent.length < RECURRENCES) return
    this.#subscribedUntilMs = now + SUBSCRIPTION_MS
    if (this.#unsubscribe === undefined) this.#join()
  }

  #join(): void {
    try {
      this.#unsubscribe = this.#options.watchWriters(commit => this.#heard(commit))
    } catch (error) {
      // Each foreign commit is followed by a read instead.
      if (this.#report(error)) this.#options.onRecovered()
    }
  }

  #leave(): void {
    this.#unsubscribe?.()
    this.#unsubscribe = undefined
    this.#awaited = undefined
    this.#recent = []
  }

  #heard(commit: WriterCommit): void {
    const { clock, onDrift } = this.#options
    const commits = this.#accounted === undefined ? 0 : commitsBetween(this.#accounted, commit.generation)
    if (commits > 0) this.#accounted = commits === 1 ? commit.generation : undefined
    if (commit.own) return
    this.#subscribedUntilMs = clock.nowMs() + SUBSCRIPTION_MS
    if (!commit.touchesUs) return
    const process = `${commit.processName} (pid ${commit.processId})`
    onDrift({ generation: commit.generation, process, certain: true })
  }
}
