import type { Ip } from '../../base/ip.ts'

/** The IPVS state as values; numbers are as in linux/ip_vs.h. */
export type IpvsProtocol = 'TCP' | 'UDP' | 'SCTP'

/** The address, protocol and port of a virtual server. */
export interface VirtualAddress {
  readonly protocol: IpvsProtocol
  readonly ip: Ip
  readonly port: number
}

export interface VirtualServer extends VirtualAddress {
  /** Name of the kernel's module without `ip_vs_`: rr, wrr, lc, mh. */
  readonly scheduler: string
  /** IP_VS_SVC_F_* without IP_VS_SVC_F_HASHED, which the kernel sets itself. */
  readonly flags: number
  /** Seconds of persistence; 0 unless IP_VS_SVC_F_PERSISTENT is set. */
  readonly timeoutS: number
  /** The bits of a client's address that persistence compares, in the kernel's form (mask or prefix length). */
  readonly netmask: number
}

/** A server that receives connections. kprobe writes only IP_VS_CONN_F_MASQ and leaves other kinds unchanged. */
export interface RealServer {
  readonly ip: Ip
  readonly port: number
  /** 0 receives no new connections. */
  readonly weight: number
  /** The bits IP_VS_CONN_F_FWD_MASK of its flags. */
  readonly forwarding: number
}

/** IPVS_STATS_ATTR_*: totals since the real server was added. */
export interface IpvsStats {
  readonly connections: bigint
  readonly packetsIn: bigint
  readonly packetsOut: bigint
  readonly bytesIn: bigint
  readonly bytesOut: bigint
}

export interface ListedDestination {
  readonly destination: RealServer
  readonly stats: IpvsStats
  readonly activeConnections: number
  readonly inactiveConnections: number
}

/** Timeouts in seconds; 0 keeps the kernel's value (IPVS_CMD_SET_CONFIG). */
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

/** `TCP 10.96.0.1:443`: unique, and used in messages. */
export type ServerKey = string
