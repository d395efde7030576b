import type { IpsetOperation } from './operation.ts'
import type { IpsetEntry } from './state.ts'

export interface IpsetFailure {
  readonly operation: IpsetOperation
  /** The entries among which the culprit is; those before it in the message are in the set. */
  readonly entries: readonly { readonly entry: IpsetEntry; readonly group: string }[]
  /** Name of the errno, or of ipset's own code (IPSET_ERR_HASH_FULL). */
  readonly code: string
  readonly error: Error
}
