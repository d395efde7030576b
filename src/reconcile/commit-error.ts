import type { Receipt } from './dataplane.ts'

/** A commit that did not happen, or whose outcome is unknown. */
export class CommitError extends Error {
  override readonly name = 'CommitError'
  readonly receipt: Receipt

  constructor(message: string, receipt: Receipt) {
    super(message, { cause: receipt.refusals[0]?.error })
    this.receipt = receipt
  }
}
