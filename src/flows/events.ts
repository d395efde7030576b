import type { Family } from '../base/ip.ts'

/** Why flows were checked; `drain`: connections were due to be cut. */
export type FlowReason = 'start' | 'change' | 'period' | 'retry' | 'drain'

/** What the flow reconciler reports: values for metrics and logs. */
export type FlowEvent =
  /** One family was checked; families that needed no check report nothing. */
  | {
      readonly kind: 'reconciled'
      readonly family: Family
      readonly reason: FlowReason
      /** Entries that the kernel listed. */
      readonly examined: number
      /** Stale UDP entries removed. */
      readonly deleted: number
      /** TCP connections cut, as their Service's drain policy says. */
      readonly cut: number
      readonly durationMs: number
    }
  /** A pass did not get through and is tried again; what it has removed is removed. */
  | { readonly kind: 'failed'; readonly error: Error; readonly retryMs: number }
