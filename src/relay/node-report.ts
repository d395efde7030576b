import type { Cancel, Clock } from '../base/clock.ts'
import { oneLine } from '../base/text.ts'
import { isJson, type Json } from '../model/fields.ts'
import type { KernelState, Revisions } from '../source/source.ts'
import { FOREIGN_TEXT_MAX } from './types.ts'

/** A node's report about its kernel, in the metadata of its requests. */
export interface NodeReport extends KernelState {
  /** Wall-clock milliseconds at which its daemon began. Reports of one daemon are ordered by their number. */
  readonly startedMs: number
  readonly number: number
  /** The identity of the cluster that the revisions belong to; empty when it is unknown. */
  readonly cluster: string
  /** The node reads the API server itself, because no relay serves it. */
  readonly isDirect: boolean
}

/** Minimum time between two reports of a node; those that come with the requests of its watches aside. */
export const REPORT_SPACING_MS = 250
/** A node that repeats its report every 30 s, or its question while it reads from the API server every 90 s, is not silent. */
export const SILENT_MS = 100_000
const LACKING_MAX = 8
const NAME_LENGTH_MAX = 130

export function encodeReport({ failure, lacking, proof, ...rest }: NodeReport): string {
  const report: NodeReport = {
    ...rest,
    failure: short(failure),
    lacking: lacking
      .slice(0, LACKING_MAX)
      .map(({ service, reason }) => ({ service: short(service, NAME_LENGTH_MAX), reason: short(reason) })),
    proof: proof && { ...proof, text: short(proof.text) },
  }
  return JSON.stringify(report)
}

/** Undefined for a text that no node sends. */
export function decodeReport(text: string): NodeReport | undefined {
  if (text.length > 8_192) return undefined
  const value = parsed(text)
  if (!isJson(value)) return undefined
  const { startedMs, number, cluster, isDirect, failure, lacking, lackingCount, version } = value
  const [held, proof] = [revisionsOf(value.held), proofOf(value.proof)]
  const isWhole =
    isCount(startedMs) &&
    isCount(number) &&
    isCount(lackingCount) &&
    typeof cluster === 'string' &&
    typeof isDirect === 'boolean' &&
    typeof failure === 'string' &&
    typeof version === 'string' &&
    Array.isArray(lacking)
  if (!isWhole || held === null || proof === null) return undefined
  return {
    startedMs,
    number,
    cluster: short(cluster),
    isDirect,
    held,
    failure: short(failure),
    lacking: lacking.slice(0, LACKING_MAX).filter(isJson).map(lackingOf),
    lackingCount,
    proof,
    version: short(version),
  }
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

const REVISION = /^[0-9]{0,20}$/

function revisionsOf(value: unknown): Revisions | undefined | null {
  if (value === undefined) return undefined
  if (!isJson(value)) return null
  const { Service, EndpointSlice } = value
  const isWhole = isRevision(Service) && isRevision(EndpointSlice)
  return isWhole ? { Service, EndpointSlice } : null
}

function isRevision(value: unknown): value is string {
  return typeof value === 'string' && REVISION.test(value)
}

function proofOf(value: unknown): NodeReport['proof'] | null {
  if (value === undefined) return undefined
  if (!isJson(value) || !isCount(value.differences) || typeof value.text !== 'string') return null
  return { text: short(value.text), differences: value.differences }
}

function lackingOf({ service, reason }: Json): NodeReport['lacking'][number] {
  return { service: short(String(service), NAME_LENGTH_MAX), reason: short(String(reason)) }
}

function isCount(value: unknown): value is number {
  return typeof value === 'number' && Number.isSafeInteger(value) && value >= 0
}

/** One line of text that a terminal may show. */
function short(text: string, length = FOREIGN_TEXT_MAX): string {
  return oneLine(text.slice(0, length)).slice(0, length)
}

interface ReportSenderOptions {
  readonly clock: Clock
  readonly random: () => number
  readonly startedMs: number
  readonly cluster: () => string
  readonly isDirect: () => boolean
  /** Hands a report to a relay, if one is read from. */
  readonly send: (text: string) => void
}

/** Reports of this node: the newest one alone, 250 ms to 1 s apart, and again every 30 s. */
export class ReportSender {
  readonly #options: ReportSenderOptions
  #state: KernelState | undefined
  #number = 0
  #sentMs = Number.NEGATIVE_INFINITY
  #spacingMs = REPORT_SPACING_MS
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
    // While changes keep coming, the time between two reports doubles up to this: 2,000 nodes would send 8,000 a
    // second.
    this.#spacingMs = isSteady ? Math.min(1_000, 2 * this.#spacingMs) : REPORT_SPACING_MS
    this.#sentMs = clock.nowMs()
    this.#dueMs = Number.POSITIVE_INFINITY
    send(text)
    // Without a change a report comes every 24 to 36 s, by which a relay knows that the node is there.
    this.#dueAt(this.#sentMs + 30_000 * (0.8 + 0.4 * random()))
  }
}

export interface ReportCall {
  /** The last report is not sent yet. */
  readonly isFull: boolean
  report(text: string, node: string): void
}

interface ReportForwarderOptions {
  readonly clock: Clock
  readonly reports: { taken: (node: string, text: string) => void }
  readonly call: () => ReportCall | undefined
}

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
    // Reports that go together: 16,000 nodes take 16 s.
    let room = call === undefined || call.isFull ? 0 : 256
    for (const [node, { text, heardMs }] of this.#waiting) {
      // The relay above would mistake an old report for a sign of life.
      const isOld = nowMs - heardMs > SILENT_MS
      if (!isOld && room === 0) continue
      this.#waiting.delete(node)
      if (isOld) continue
      room--
      call?.report(text, node)
    }
  }
}
