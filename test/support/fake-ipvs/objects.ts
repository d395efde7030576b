import type { Octets } from '../../../src/base/octets.ts'
import type { IpvsStats } from '../../../src/kernel/ipvs/state.ts'

/** struct ip_vs_service, as far as the fake goes. */
export interface FakeServer {
  readonly family: number
  readonly protocol: number
  /** 16 bytes. */
  readonly address: Octets
  readonly port: number
  /** 0 for one that is reached by its address. */
  readonly mark: number
  scheduler: string
  flags: number
  timeoutS: number
  netmask: Octets
  /** By family, address and port. */
  readonly destinations: Map<string, FakeDestination>
}

/** struct ip_vs_dest. */
export interface FakeDestination {
  readonly family: number
  readonly address: Octets
  readonly port: number
  weight: number
  forwarding: number
  connectionsMax: number
  connectionsLow: number
  activeConnections: number
  inactiveConnections: number
  stats: IpvsStats
}

export const NO_STATS: IpvsStats = {
  connections: 0n,
  packetsIn: 0n,
  packetsOut: 0n,
  bytesIn: 0n,
  bytesOut: 0n,
}

export type FakeAddress = Pick<FakeServer, 'family' | 'protocol' | 'address' | 'port' | 'mark'>

/** What __ip_vs_service_find and __ip_vs_svc_fwm_find go by. */
export function addressKey({ family, protocol, address, port, mark }: FakeAddress): string {
  if (mark !== 0) return `${family} mark ${mark}`
  return `${family} ${protocol} ${Buffer.from(address, 'latin1').toString('hex')} ${port}`
}

export function destinationKeyOf({
  family,
  address,
  port,
}: Pick<FakeDestination, 'family' | 'address' | 'port'>): string {
  return `${family} ${Buffer.from(address, 'latin1').toString('hex')} ${port}`
}
