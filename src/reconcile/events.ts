import type { Generation, Plan, Receipt } from './dataplane.ts'

/** What the reconciler reports: values for logs, metrics and health, never a call back into a source. */
export type ReconcilerEvent =
  | {
      readonly kind: 'committed'
      readonly reason: PassReason
      readonly plan: Plan<unknown>
      readonly receipt: Receipt
    }
  /** The kernel holds what the Snapshot of this number asks for. */
  | {
      readonly kind: 'synced'
      readonly number: number
      readonly reason: PassReason
      /** Time from the start of the first pass that this one finished, pauses between commits included. */
      readonly durationMs: number
      /** The whole kernel state was read. */
      readonly looked: boolean
    }
  /** The kernel differed from what we had left there, and holds it again. */
  | { readonly kind: 'healed'; readonly changes: number; readonly objects: readonly string[] }
  /** Another program committed; `process` is known only while a subscription is open. */
  | {
      readonly kind: 'foreign-commit'
      readonly generation: Generation
      readonly process: string | undefined
      readonly damage: boolean
    }
  | { readonly kind: 'stale'; readonly attempt: number }
  | {
      readonly kind: 'quarantined'
      readonly service: string
      readonly error: Error
      readonly retryMs: number
    }
  | { readonly kind: 'released'; readonly service: string }
  /** A pass failed as a whole and is tried again. */
  | { readonly kind: 'failed'; readonly error: Error; readonly retryMs: number }

export type PassReason = 'start' | 'change' | 'drift' | 'period' | 'retry'
