import type { Cancel, Clock } from '../base/clock.ts'
import type { KernelState } from '../source/source.ts'
import { encodeReport, REPORT_PERIOD_MS, REPORT_SPACING_MS } from './node-report.ts'

interface ReportSenderOptions {
  readonly clock: Clock
  /** Uniform in [0, 1). */
  readonly random: () => number
  /** See NodeReport. */
  readonly startedMs: number
  readonly cluster: () => string
  readonly isDirect: () => boolean
  /** Hands a report to a relay, if one is read from. */
  readonly send: (text: string) => void
}

/** While changes keep coming, the time between two reports doubles up to this: 2,000 nodes would send 8,000 a second. */
const STEADY_MS = 1_000

/** Reports of this node: the newest one alone, 250 ms to 1 s apart, and again every 30 s. */
export class ReportSender {
  readonly #options: ReportSenderOptions
  #state: KernelState | undefined
  #number = 0
  #sentMs = Number.NEGATIVE_INFINITY
  #spacingMs = REPORT_SPACING_MS
  /** When the next report is due. */
  #dueMs = Number.POSITIVE_INFINITY
  #cancel: Cancel = () => undefined

  constructor(options: ReportSenderOptions) {
    this.#options = options
  }

  update(state: KernelState): void {
    this.#state = state
    this.#dueAt(Math.max(this.#options.clock.nowMs(), this.#sentMs + this.#spacingMs))
  }

  /** The newest report with a number of its own; undefined before the first. */
  text(): string | undefined {
    const { startedMs, cluster, isDirect } = this.#options
    if (this.#state === undefined) return undefined
    return encodeReport({
      ...this.#state,
      startedMs,
      number: ++this.#number,
      cluster: cluster(),
      isDirect: isDirect(),
    })
  }

  stop(): void {
    this.#cancel()
    this.#state = undefined
    this.#dueMs = Number.NEGATIVE_INFINITY
  }

  #dueAt(ms: number): void {
    if (ms >= this.#dueMs) return
    this.#cancel()
    this.#dueMs = ms
    this.#cancel = this.#options.clock.after(ms - this.#options.clock.nowMs(), () => this.#send())
  }

  #send(): void {
    const { clock, random, send } = this.#options
    const text = this.text()
    if (text === undefined) return
    const isSteady = clock.nowMs() - this.#sentMs <= this.#spacingMs
    this.#spacingMs = isSteady ? Math.min(STEADY_MS, 2 * this.#spacingMs) : REPORT_SPACING_MS
    this.#sentMs = clock.nowMs()
    this.#dueMs = Number.POSITIVE_INFINITY
    send(text)
    this.#dueAt(this.#sentMs + REPORT_PERIOD_MS * (0.8 + 0.4 * random()))
  }
}
