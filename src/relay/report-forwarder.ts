import type { Cancel, Clock } from '../base/clock.ts'
import { REPORT_SPACING_MS } from './node-report.ts'
import type { NodeReports } from './reports.ts'

/** The call at which reports are handed on. */
export interface ReportCall {
  /** What was said last is not sent yet. */
  readonly isFull: boolean
  report(text: string, node: string): void
}

interface ReportForwarderOptions {
  readonly clock: Clock
  readonly reports: NodeReports
  /** Undefined while no relay is read from. */
  readonly call: () => ReportCall | undefined
}

/** Reports that go together: 16,000 nodes take 16 s. */
const REPORTS_MAX = 256

/**
 * Hands the reports of the nodes that read from a relay on to the relay that it reads from: each whole, the newest of each
 * node alone. A relay that has not heard of a node before hears of it when the node repeats its report.
 */
export class ReportForwarder {
  readonly #options: ReportForwarderOptions
  readonly #waiting = new Map<string, string>()
  #cancel: Cancel | undefined

  constructor(options: ReportForwarderOptions) {
    this.#options = options
    options.reports.taken = (node, text) => {
      this.#waiting.set(node, text)
      this.#cancel ??= this.#later()
    }
  }

  stop(): void {
    this.#options.reports.taken = () => undefined
    this.#cancel?.()
  }

  #later(): Cancel {
    return this.#options.clock.after(REPORT_SPACING_MS, () => {
      this.#cancel = undefined
      this.#send()
      if (this.#waiting.size > 0) this.#cancel = this.#later()
    })
  }

  #send(): void {
    const call = this.#options.call()
    if (call === undefined || call.isFull) return
    let sent = 0
    for (const [node, text] of this.#waiting) {
      if (sent++ === REPORTS_MAX) break
      this.#waiting.delete(node)
      call.report(text, node)
    }
  }
}
