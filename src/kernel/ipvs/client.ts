import type { IpvsOperation } from './operation.ts'
import type { IpvsInfo, IpvsListing, IpvsTimeouts, ListedDestination, VirtualAddress } from './state.ts'

/** The kernel's IPVS, as far as this project speaks with it: generic netlink family IPVS. */
export interface IpvsClient {
  /** Throws NetlinkError ENOENT where the kernel has no IPVS. */
  info(): IpvsInfo
  timeouts(): IpvsTimeouts
  setTimeouts(timeouts: IpvsTimeouts): void
  /** All virtual servers of this network namespace, those of marks apart. */
  servers(): Promise<IpvsListing>
  /** Those of each server, in one conversation; a server that is gone has none. */
  destinations(servers: readonly VirtualAddress[]): Promise<readonly (readonly ListedDestination[])[]>
  /** Sends all of them in as few datagrams as the socket takes. What the kernel says is in the result. */
  commit(operations: readonly IpvsOperation[]): Promise<IpvsResult>
  close(): Promise<void>
}

export interface IpvsResult {
  /** Nobody can say what came of some of the operations: read back. */
  readonly unknown: Error | undefined
  readonly failures: readonly IpvsFailure[]
  readonly bytes: number
  readonly messages: number
}

export interface IpvsFailure {
  readonly operation: IpvsOperation
  /** Name of the errno: ENOENT of set-server is a scheduler that the kernel does not have. */
  readonly code: string
  readonly error: Error
}
