import type { OwnedElement, Operation, Transaction } from './operation.ts'
import type { NftFamily, Ruleset } from './state.ts'

/** The kernel's nf_tables, as far as this project speaks with it. */
export interface NftClient {
  /** NFT_MSG_GETGEN: grows with every commit by anyone in this network namespace. Synchronous, under 10 us. */
  generation(): number
  /** Sends one batch. What the kernel says is in the result; only bugs of ours throw. */
  commit(transaction: Transaction, options?: { readonly generation?: number }): Promise<CommitResult>
  /**
   * Reads whole tables, bracketed by generation reads and repeated until nobody committed meanwhile. Tables that do
   * not exist are left out. Elements come grouped by set; those of sets with NFT_SET_EVAL carry expiresMs.
   */
  list(tables: readonly TableName[]): Promise<Listing>
  close(): Promise<void>
}

export interface TableName {
  readonly family: NftFamily
  readonly name: string
}

export interface Listing {
  readonly ruleset: Ruleset
  readonly generation: number
}

export interface CommitResult {
  readonly outcome: 'committed' | 'stale' | 'refused' | 'unknown'
  readonly generation: number
  /** Somebody else committed between the previous look at the generation and this commit. */
  readonly foreign: boolean
  readonly failures: readonly OperationFailure[]
  readonly bytes: number
  readonly messages: number
  readonly durationMs: number
}

/** One message of a batch that the kernel refused. */
export interface OperationFailure {
  readonly operation: Operation
  /** The elements among which the culprit is: one when the kernel told its offset, all of the message otherwise. */
  readonly elements: readonly OwnedElement[]
  readonly error: Error
}
