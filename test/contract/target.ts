import { release } from 'node:os'
import { systemClock } from '../../src/base/clock.ts'
import { createNftClient, type NftClient } from '../../src/kernel/nft/client.ts'
import type { IpsetNames } from '../../src/kernel/nft/ipset-match.ts'
import type { Transport } from '../../src/netlink/transport.ts'

export interface Versioned {
  /** Of Linux; undefined when it answers as the newest does. */
  readonly version: readonly [major: number, minor: number] | undefined
}

/** A kernel, real or not, whose nf_tables is empty. */
export interface Target extends Versioned {
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

export function isUpTo({ version }: Versioned, [major, minor]: readonly [number, number]): boolean {
  return version !== undefined && (version[0] < major || (version[0] === major && version[1] <= minor))
}

export function versionOfThisKernel(): readonly [number, number] {
  const [major = 0, minor = 0] = release().split('.').map(Number)
  return [major, minor]
}

export interface Tools {
  readonly target: Target
  readonly client: NftClient
}

export function clientOf(target: Target): NftClient {
  return createNftClient({ transport: target.open(), clock: systemClock })
}

/** Lends something for one test, which closes it. */
export async function lent<T extends { close(): Promise<void> }>(
  one: T,
  use: (one: T) => Promise<void>,
): Promise<void> {
  await use(one)
  await one.close()
}
