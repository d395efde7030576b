import type { Family, Ip } from '../../base/ip.ts'

/** What IPVS balances, as values; numbers are as in linux/ip_vs.h. */
export type IpvsProtocol = 'TCP' | 'UDP' | 'SCTP'

/** What a virtual server catches. */
export interface VirtualAddress {
  readonly protocol: IpvsProtocol
  readonly ip: Ip
  readonly port: number
}

export interface VirtualServer extends VirtualAddress {
  /** Name of the kernel's module without `ip_vs_`: rr, wrr, lc, mh. */
  readonly scheduler: string
  /** IP_VS_SVC_F_* without IP_VS_SVC_F_HASHED, which is the kernel's own. */
  readonly flags: number
  /** Seconds of persistence; 0 unless IP_VS_SVC_F_PERSISTENT is set. */
  readonly timeoutS: number
  /** Which bits of a client's address persistence goes by: the kernel's own form (mask or prefix length). */
  readonly netmask: number
}

/** A server that connections are sent to. Only IP_VS_CONN_F_MASQ is written; others are read and left alone. */
export interface RealServer {
  readonly ip: Ip
  readonly port: number
  /** 0 takes no new connections. */
  readonly weight: number
  /** IP_VS_CONN_F_FWD_MASK of its flags. */
  readonly forwarding: number
}

/** A virtual server that is reached by a mark instead of an address; never ours. */
export interface MarkServer {
  readonly family: Family
  readonly mark: number
  readonly scheduler: string
}

/** IPVS_STATS_ATTR_*: totals since the server was made. */
export interface IpvsStats {
  readonly connections: bigint
  readonly packetsIn: bigint
  readonly packetsOut: bigint
  readonly bytesIn: bigint
  readonly bytesOut: bigint
}

export interface ListedServer {
  readonly server: VirtualServer
  readonly stats: IpvsStats
}

export interface ListedDestination {
  readonly destination: RealServer
  readonly stats: IpvsStats
  readonly activeConnections: number
  readonly inactiveConnections: number
  /** Templates of persistence. */
  readonly persistentConnections: number
}

export interface IpvsListing {
  readonly servers: readonly ListedServer[]
  readonly marks: readonly MarkServer[]
}

/** Seconds; 0 leaves what the kernel has (IPVS_CMD_SET_CONFIG). */
export interface IpvsTimeouts {
  readonly tcpS: number
  readonly tcpFinS: number
  readonly udpS: number
}

export interface IpvsInfo {
  /** `1.2.1`. */
  readonly version: string
  readonly connectionTableSize: number
}

/** `TCP 10.96.0.1:443`: unique, and what messages call it. */
export type ServerKey = string
