import type { IpsetNames } from '../../src/kernel/nft/ipset-names.ts'
import type { Transport } from '../../src/netlink/transport.ts'

/** A kernel, real or not, whose nf_tables is empty. */
export interface Target {
  /** Of Linux; undefined when it answers as the newest does. */
  readonly version: readonly [major: number, minor: number] | undefined
  open(limits?: SocketLimits): Transport
  /** Makes an empty ipset of IPv4, or IPv6, addresses and ports. */
  createIpset(name: string, family: 'ip' | 'ip6'): void
  ipsets(): IpsetNames
}

export interface SocketLimits {
  /** SO_SNDBUF and SO_RCVBUF. */
  readonly sendBytesMax?: number
  readonly receiveBytesMax?: number
}

/** Makes a new one; the one before is not used any more. */
export type TargetFactory = () => Target

export function isUpTo({ version }: Target, [major, minor]: readonly [number, number]): boolean {
  return version !== undefined && (version[0] < major || (version[0] === major && version[1] <= minor))
}
