import {
  type BackoffOptions,
  type Clock,
  finishInSlices,
  HOLD_MS_MAX,
  Pacer,
  restMs,
  type Steps,
  SYNC_REST_MS_MAX,
  slicingOf,
} from '../base/clock.ts'
import { errorOf } from '../base/errors.ts'
import type { FrontendTable } from '../model/frontend.ts'
import type { Memo, Resolved } from '../model/resolve.ts'
import type { Snapshot } from '../model/snapshot.ts'
import type { Dataplane, Plan } from './dataplane.ts'
import { DriftDetector } from './drift.ts'
import { Pass, type PassReason, type ReconcilerEvent } from './pass.ts'
import { type FailedFamily, Quarantine, type QuarantineEntry } from './quarantine.ts'

export interface ReconcilerOptions<State, P extends Plan<State>> {
  readonly plane: Dataplane<State, P>
  readonly resolve: (previous: Resolved | undefined, snapshot: Snapshot) => Steps<Resolved>
  readonly clock: Clock
  /** Uniform in [0, 1). */
  readonly random: () => number
  /** Minimum time between two commits, milliseconds. */
  readonly minIntervalMs: number
  /** Share of a processor for passes while changes keep coming. */
  readonly share: number
  /** Maximum interval between full resyncs, milliseconds. */
  readonly resyncPeriodMs: number
  /** Interval of the checks of the kernel's generation, milliseconds; 0 for never. */
  readonly driftPollMs: number
  readonly report: (event: ReconcilerEvent) => void
  /** Gets each resolved state at once, whatever the result of its commit. */
  readonly resolved?: ((resolved: Resolved) => void) | undefined
  /** See PassOptions. */
  readonly doubts?: (held: State, wanted: State) => Promise<boolean>
}

export interface ReconcilerStatus {
  /** Number of the newest Snapshot that the kernel holds entirely; undefined before the first. */
  readonly syncedNumber: number | undefined
  readonly quarantined: readonly QuarantineEntry[]
  /** The family that the kernel cannot program. */
  readonly failedFamily: FailedFamily | undefined
  /** The error of the last pass, if it failed. */
  readonly error: Error | undefined
  readonly table: FrontendTable | undefined
  /** The snapshot that `table` was computed from. Sources may have newer objects. */
  readonly snapshot: Snapshot | undefined
  readonly memo: Memo | undefined
}

/** A state that the kernel holds since a pass ended, as far as this process knows. */
export interface Held<State> {
  readonly state: State
  readonly resolved: Resolved
  /** Passes so far: with another number, the kernel may hold something else. */
  readonly passes: number
}

/** What a pass brought to the kernel, and the time from the start of the first pass for it. */
interface Served {
  readonly resolved: Resolved
  readonly reason: PassReason
  readonly durationMs: number
}

const RETRY: Omit<BackoffOptions, 'random'> = { minMs: 100, maxMs: 30_000 }
const QUARANTINE: Omit<BackoffOptions, 'random'> = { minMs: 1_000, maxMs: 300_000 }

/** A change that comes so soon after a rest counts as one that waited for its end: its source reads what it kept back. */
const STEADY_SLACK_MS = 50

/**
 * Decides when passes run: the first change after a calm at once, then at a distance that follows from what the last pass
 * cost, in which changes coalesce; again after a failure with growing delays; and whenever the kernel may differ from the
 * applied state.
 */
export class Reconciler<State, P extends Plan<State>> {
  readonly #options: ReconcilerOptions<State, P>
  readonly #quarantine: Quarantine
  readonly #drift: DriftDetector
  readonly #pass: Pass<State, P>
  readonly #pacer: Pacer
  #snapshot: Snapshot | undefined
  #resolved: Resolved | undefined
  #pending: PassReason | undefined
  /** A change came during a pass or the rest after it, or just then. */
  #hasWaiting = false
  /** `#hasWaiting` was true when the present pass began: changes keep coming. */
  #isSteady = false
  #resyncAtMs: number
  #error: Error | undefined
  #synced: number | undefined
  /** The kernel serves this since the last pass, which left something for the next. */
  #served: Served | undefined
  #passes = 0
  #committedMs = Number.NEGATIVE_INFINITY
  /** Processor time of the process at the end of the last pass. */
  #endCpuMs = 0
  /** The start of the first of the passes that together bring the kernel to a Snapshot, and whether one read the kernel. */
  #began: { atMs: number; readWhole: boolean } | undefined

  constructor(options: ReconcilerOptions<State, P>) {
    this.#options = options
    const { plane, clock, random, driftPollMs } = options
    this.#pacer = new Pacer({ clock, run: () => this.#passOnce() })
    this.#quarantine = new Quarantine({ ...QUARANTINE, random })
    this.#resyncAtMs = clock.nowMs() + options.resyncPeriodMs
    this.#drift = new DriftDetector({
      clock,
      pollMs: driftPollMs,
      generation: () => plane.generation(),
      watchGeneration: (everyMs, changed) => plane.watchGeneration?.(everyMs, changed),
      busy: () => this.#pacer.isRunning,
      watchWriters: report => plane.watchWriters(report),
      onDrift: sign => {
        this.#pass.invalidate()
        this.#served = undefined
        options.report({
          kind: 'foreign-commit',
          generation: sign.generation,
          process: sign.process,
          damage: sign.certain,
        })
        // Damage does not wait for the rest of a storm; other programs need the time between two commits.
        if (this.#error === undefined) this.#pacer.restUntil(this.#committedMs + options.minIntervalMs)
        this.#wake('drift')
      },
      onError: error => options.report({ kind: 'failed', error, retryMs: driftPollMs }),
      // Only a pass that succeeds ends a failure.
      onRecovered: () => this.#wake('retry'),
    })
    this.#pass = new Pass({
      plane,
      slicing: slicingOf(clock),
      nowMs: () => clock.nowMs(),
      quarantine: this.#quarantine,
      report: options.report,
      atGeneration: (generation, foreign) => {
        this.#drift.expect(generation, foreign)
        this.#committedMs = clock.nowMs()
        this.#pacer.rest(options.minIntervalMs)
      },
      noteRead: durationMs => this.#drift.noteRead(durationMs),
      pace: () => this.#pacer.rested(),
      doubts: options.doubts,
    })
  }

  /** The newest state that was rendered, with the numbering that is in the kernel; undefined before the first. */
  get rendered(): State | undefined {
    return this.#pass.rendered
  }

  /** The state of the kernel; undefined while a pass runs, and after one that failed or left something for the next. */
  get held(): Held<State> | undefined {
    const [state, resolved] = [this.#pass.rendered, this.#resolved]
    const isSettled = !this.#pacer.isRunning && this.#synced !== undefined && this.#began === undefined
    if (!isSettled || state === undefined || resolved === undefined) return undefined
    return { state, resolved, passes: this.#passes }
  }

  get isPassing(): boolean {
    return this.#pacer.isRunning
  }

  get status(): ReconcilerStatus {
    return {
      syncedNumber: this.#synced,
      quarantined: this.#quarantine.entries,
      failedFamily: this.#quarantine.failedFamily,
      error: this.#error,
      table: this.#resolved?.table,
      snapshot: this.#resolved?.snapshot,
      memo: this.#resolved?.memo,
    }
  }

  /** Takes the newest Snapshot; older ones that were not applied yet are forgotten. */
  offer(snapshot: Snapshot): void {
    this.#snapshot = snapshot
    this.#hasWaiting = this.#pacer.isBusyOrWas(STEADY_SLACK_MS)
    this.#wake(this.#resolved === undefined ? 'start' : 'change')
  }

  /**
   * While changes keep coming, resolves when a pass for another one may begin at once, after a second at the latest: changes
   * that come before that coalesce, and a source that keeps them back reads them for less than one at a time.
   */
  paced(): Promise<void> | undefined {
    return this.#isSteady ? this.#pacer.idle(HOLD_MS_MAX) : undefined
  }

  /** Ends the pass that is running and starts no other. The kernel keeps what it holds. */
  async stop(): Promise<void> {
    this.#drift.stop()
    await this.#pacer.stop()
  }

  #wake(reason: PassReason): void {
    this.#pending = weightier(this.#pending, reason)
    this.#pacer.wake()
  }

  /** Gives the time to the next pass: for waiting work, a Service in quarantine or the next full resync. */
  async #passOnce(): Promise<number> {
    const { clock, share } = this.#options
    this.#passes++
    this.#isSteady = this.#hasWaiting
    this.#hasWaiting = false
    // While changes keep coming, the cost includes reading them. After a calm, work before the pass does not count.
    const beganCpuMs = this.#isSteady ? this.#endCpuMs : clock.cpuMs()
    await this.#passNow()
    this.#endCpuMs = clock.cpuMs()
    this.#pacer.rest(restMs(this.#endCpuMs - beganCpuMs, { share, maxMs: SYNC_REST_MS_MAX }))
    if (this.#pending !== undefined) return 0
    return Math.min(this.#resyncAtMs, this.#quarantine.nextRetryMs() ?? Infinity) - clock.nowMs()
  }

  async #passNow(): Promise<void> {
    const { clock, report, random } = this.#options
    const isResyncTime = clock.nowMs() >= this.#resyncAtMs
    const reason = weightier(isResyncTime ? 'period' : undefined, this.#pending ?? 'retry')
    this.#pending = undefined
    if (isResyncTime) this.#pass.invalidate()
    try {
      this.#settleServed()
      this.#began ??= { atMs: clock.nowMs(), readWhole: false }
      const resolved = await this.#resolveNewest()
      if (resolved === undefined) return
      const { complete, serves, readWhole } = await this.#pass.run(resolved.table, reason)
      if (readWhole) this.#resyncAtMs = clock.nowMs() + this.#options.resyncPeriodMs
      this.#began.readWhole ||= readWhole
      this.#pacer.succeeded()
      this.#error = undefined
      if (complete) this.#settle({ resolved, reason, durationMs: this.#tookMs })
      else {
        this.#pending ??= 'change'
        if (serves === true) this.#served = { resolved, reason, durationMs: this.#tookMs }
      }
    } catch (thrown) {
      this.#error = errorOf(thrown)
      this.#pass.invalidate()
      this.#pending ??= 'retry'
      const retryMs = this.#pacer.failed({ ...RETRY, random })
      report({ kind: 'failed', error: this.#error, retryMs })
    }
  }

  async #resolveNewest(): Promise<Resolved | undefined> {
    const snapshot = this.#snapshot
    if (snapshot === undefined) return undefined
    if (this.#resolved?.snapshot !== snapshot) {
      const steps = this.#options.resolve(this.#resolved, snapshot)
      this.#resolved = await finishInSlices(steps, slicingOf(this.#options.clock))
      this.#options.resolved?.(this.#resolved)
    }
    return this.#resolved
  }

  /** While changes keep coming, each pass may leave something: what the last one brought is in force nevertheless. */
  #settleServed(): void {
    const served = this.#served
    this.#served = undefined
    if (served !== undefined && this.#snapshot !== served.resolved.snapshot) this.#settle(served)
  }

  /** Time since the first of the passes that together bring the kernel to a Snapshot began. */
  get #tookMs(): number {
    const nowMs = this.#options.clock.nowMs()
    return nowMs - (this.#began?.atMs ?? nowMs)
  }

  #settle({ resolved, reason, durationMs }: Served): void {
    if (this.#options.driftPollMs > 0 && !this.#pacer.isStopped) this.#drift.start()
    this.#synced = resolved.table.number
    const readWhole = this.#began?.readWhole ?? false
    this.#began = undefined
    this.#options.report({ kind: 'synced', number: resolved.table.number, reason, durationMs, readWhole })
  }
}

/** The rank of the reasons of a pass: drift must not be reported as a change. */
const WEIGHTS: Readonly<Record<PassReason, number>> = { retry: 0, change: 1, period: 2, drift: 3, start: 4 }

function weightier(a: PassReason | undefined, b: PassReason): PassReason {
  return a === undefined || WEIGHTS[b] > WEIGHTS[a] ? b : a
}
