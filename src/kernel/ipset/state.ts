import type { Family, Ip } from '../../base/ip.ts'

export type IpsetType = 'hash:ip' | 'hash:ip,port' | 'hash:ip,port,ip' | 'hash:ip,port,net' | 'bitmap:port'

/** A set without its elements. */
export interface Ipset {
  /** At most 31 bytes. */
  readonly name: string
  readonly type: IpsetType
  /** IPv4 for a bitmap:port, which has no family. */
  readonly family: Family
  /** Maximum number of elements; 65536 for a bitmap:port. */
  readonly maxElements: number
  /** Initial number of buckets, a power of two; 0 for a bitmap:port. */
  readonly hashSize: number
}

/** IPPROTO_*. */
type IpsetProtocol = number

/** An entry of a set; fields that the type does not use are undefined. */
export interface IpsetEntry {
  readonly ip?: Ip
  readonly protocol?: IpsetProtocol
  readonly port?: number
  /** For hash:ip,port,ip and hash:ip,port,net. */
  readonly ip2?: Ip
  /** For hash:ip,port,net: 1 to 32, or 128. */
  readonly prefix2?: number
}

/** The kernel's description of a set: cheap to read, and enough to detect changes by another program. */
export interface IpsetHeader {
  readonly set: Ipset
  /** Type revision. */
  readonly revision: number
  readonly elements: number
  readonly references: number
  readonly memoryBytes: number
  /** Maximum entries per bucket, where the kernel reports it (revisions of Linux 5.11 and newer). */
  readonly bucketSize?: number | undefined
  /** Initial value of the hash function, where the kernel reports it. */
  readonly initialValue?: number | undefined
}

export interface IpsetListing extends IpsetHeader {
  readonly entries: readonly IpsetEntry[]
}
