import { rfc3339 } from '../base/text.ts'

/** One commit, as /receipts shows it. */
interface ReceiptLine {
  readonly time: string
  /** The reason for the pass: `change`, `drift`, ... */
  readonly reason: string
  readonly outcome: string
  readonly changes: number
  readonly generation: unknown
  readonly foreign: boolean
  readonly bytes: number
  readonly messages: number
  readonly durationMs: number
  readonly refusals: readonly { readonly services: readonly string[]; readonly error: string }[]
}

/** The fields of a Receipt that /receipts shows. */
export interface ReceiptLike {
  readonly outcome: string
  readonly generation: unknown
  readonly foreign: boolean
  readonly refusals: readonly { readonly services: readonly string[]; readonly error: Error }[]
  readonly bytes: number
  readonly messages: number
  readonly durationMs: number
}

const RECEIPTS_MAX = 128
const REFUSALS_MAX = 20

/** Keeps the last 128 commits, oldest first, each with its first 20 refusals. */
export class Receipts {
  readonly #wallMs: () => number
  readonly #lines: ReceiptLine[] = []

  constructor(wallMs: () => number) {
    this.#wallMs = wallMs
  }

  add(reason: string, changes: number, receipt: ReceiptLike): void {
    const { outcome, generation, foreign, bytes, messages, durationMs } = receipt
    const refusals = receipt.refusals
      .slice(0, REFUSALS_MAX)
      .map(({ services, error }) => ({ services: services.slice(0, REFUSALS_MAX), error: error.message }))
    const time = rfc3339(this.#wallMs())
    this.#lines.push({
      time,
      reason,
      outcome,
      changes,
      generation,
      foreign,
      bytes,
      messages,
      durationMs,
      refusals,
    })
    if (this.#lines.length > RECEIPTS_MAX) this.#lines.shift()
  }

  get lines(): readonly ReceiptLine[] {
    return [...this.#lines]
  }
}
