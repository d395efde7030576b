import type { IpsetOperation } from './operation.ts'
import type { IpsetEntry, IpsetHeader, IpsetListing, IpsetType } from './state.ts'

/** The kernel's ipsets, as far as this project speaks with them: nfnetlink subsystem NFNL_SUBSYS_IPSET. */
export interface IpsetClient {
  /** The newest revision of a type that both the kernel and this program know; undefined where the kernel lacks it. */
  revision(type: IpsetType, family: 'IPv4' | 'IPv6'): number | undefined
  /** Those of types and revisions that this program does not know have no header: see `foreign`. */
  headers(): Promise<IpsetHeaders>
  /** Whole sets, by name; those that do not exist are left out. */
  list(names: readonly string[]): Promise<readonly IpsetListing[]>
  /** Sends the operations one after the other in as few datagrams as the socket takes. */
  commit(operations: readonly IpsetOperation[]): Promise<IpsetResult>
  /** The kernel's number of a set, by which rules refer to it (IPSET_CMD_GET_BYNAME); undefined when there is none. */
  indexOf(name: string): number | undefined
  /** IPSET_CMD_GET_BYINDEX. */
  nameOf(index: number): string | undefined
  close(): Promise<void>
}

export interface IpsetHeaders {
  readonly headers: readonly IpsetHeader[]
  /** Names of sets that are of no type of ours. */
  readonly foreign: readonly string[]
}

export interface IpsetResult {
  /** Nobody can say what came of some of the operations: read back. */
  readonly unknown: Error | undefined
  readonly failures: readonly IpsetFailure[]
  readonly bytes: number
  readonly messages: number
}

export interface IpsetFailure {
  readonly operation: IpsetOperation
  /** The entries among which the culprit is; those before it in the message are in the set. */
  readonly entries: readonly { readonly entry: IpsetEntry; readonly group: string }[]
  /** Name of the errno, or of ipset's own code (IPSET_ERR_HASH_FULL). */
  readonly code: string
  readonly error: Error
}
