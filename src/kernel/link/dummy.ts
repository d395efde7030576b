import type { Ip } from '../../base/ip.ts'

/** A device without a wire, whose addresses make the node take packets in (kube-ipvs0). */
export interface DummyClient {
  /** The addresses of the device; undefined when there is no such device. Throws when it is no dummy. */
  addresses(name: string): Promise<readonly Ip[] | undefined>
  /** Makes the device if need be. Throws NetlinkError: EOPNOTSUPP where the kernel has no dummy devices. */
  ensure(name: string): void
  /** Removes the device with all its addresses; nothing happens when there is none. */
  remove(name: string): void
  /** Adds (/32 or /128, without duplicate address detection) and removes; idempotent. */
  commit(name: string, changes: AddressChanges): Promise<AddressResult>
  close(): Promise<void>
}

export interface AddressChanges {
  readonly add: readonly Ip[]
  readonly remove: readonly Ip[]
}

export interface AddressResult {
  readonly unknown: Error | undefined
  readonly failures: readonly { readonly ip: Ip; readonly code: string; readonly error: Error }[]
  readonly bytes: number
  readonly messages: number
}
