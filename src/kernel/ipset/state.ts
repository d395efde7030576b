import type { Family, Ip } from '../../base/ip.ts'

export type IpsetType = 'hash:ip' | 'hash:ip,port' | 'hash:ip,port,ip' | 'hash:ip,port,net' | 'bitmap:port'

/** One set, without its elements. */
export interface Ipset {
  /** At most 31 bytes. */
  readonly name: string
  readonly type: IpsetType
  /** Of a bitmap:port, which has none, IPv4. */
  readonly family: Family
  /** Elements at most; of a bitmap:port 65536. */
  readonly maxElements: number
  /** Buckets at the start, a power of two; of a bitmap:port 0. */
  readonly hashSize: number
}

/** IPPROTO_*. */
type IpsetProtocol = number

/** What a set has: fields that its type has no use for are undefined. */
export interface IpsetEntry {
  readonly ip?: Ip
  readonly protocol?: IpsetProtocol
  readonly port?: number
  /** Of hash:ip,port,ip and hash:ip,port,net. */
  readonly ip2?: Ip
  /** Of hash:ip,port,net: 1 to 32, or 128. */
  readonly prefix2?: number
}

/** What the kernel says of a set: what is cheap to ask for, and tells whether somebody else changed it. */
export interface IpsetHeader {
  readonly set: Ipset
  /** Type revision. */
  readonly revision: number
  readonly elements: number
  readonly references: number
  readonly memoryBytes: number
  /** Entries of one bucket at most; where the kernel tells (revisions of Linux 5.11 and newer). */
  readonly bucketSize?: number | undefined
  /** What its hash starts with; where the kernel tells. */
  readonly initialValue?: number | undefined
}

export interface IpsetListing extends IpsetHeader {
  readonly entries: readonly IpsetEntry[]
}
