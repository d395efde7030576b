import type { Cancel, Clock } from '../base/clock.ts'
import { SILENT_MS } from './judgement.ts'
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
  readonly #waiting = new Map<string, { readonly text: string; readonly heardMs: number }>()
  #cancel: Cancel | undefined

  constructor(options: ReportForwarderOptions) {
    this.#options = options
    options.reports.taken = (node, text) => {
      this.#waiting.set(node, { text, heardMs: options.clock.nowMs() })
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
    const nowMs = this.#options.clock.nowMs()
    let room = call === undefined || call.isFull ? 0 : REPORTS_MAX
    for (const [node, { text, heardMs }] of this.#waiting) {
      // The relay above would take it for news of a node that is silent.
      const isOld = nowMs - heardMs > SILENT_MS
      if (!isOld && room === 0) continue
      this.#waiting.delete(node)
      if (isOld) continue
      room--
      call?.report(text, node)
    }
  }
}
