import type { Ip } from '../../base/ip.ts'
import type { Ipset, IpsetEntry } from '../ipset/state.ts'
import type { RealServer, VirtualAddress, VirtualServer } from './state.ts'

/** What decides about packets outside of nf_tables in IPVS mode: objects of all programs. */
export interface IpvsHeld {
  readonly servers: readonly HeldServer[]
  readonly ipsets: readonly HeldIpset[]
  /** Addresses of all devices. IPVS receives packets to them. */
  readonly addresses: readonly Ip[]
}

export interface HeldServer {
  readonly server: VirtualServer
  readonly destinations: readonly RealServer[]
}

export interface HeldIpset {
  readonly set: Ipset
  readonly entries: readonly IpsetEntry[]
}

/** What commits changed of it. */
export interface IpvsChange {
  /** Virtual servers that came, changed or went. */
  readonly servers: readonly { readonly at: VirtualAddress; readonly now: HeldServer | undefined }[]
  readonly entries: readonly { readonly set: string; readonly entry: IpsetEntry; readonly isThere: boolean }[]
  /** Why packets to every Service are concerned; undefined where only these are. */
  readonly why: string | undefined
}
