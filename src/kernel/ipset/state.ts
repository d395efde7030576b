import { type Family, formatIpAsC, type Ip } from '../../base/ip.ts'
import { octets, string, u8, u16be, u32be } from '../../netlink/codecs.ts'
import { NLA_F_NET_BYTEORDER } from '../../netlink/constants.ts'
import { groupsText, NetlinkError, type NetlinkErrorDetails } from '../../netlink/errors.ts'
import { attributeSet, listOf, nested } from '../../netlink/schema.ts'
import { NFPROTO_IPV4, NFPROTO_IPV6, NFPROTO_UNSPEC } from '../nft/constants.ts'

/** linux/netfilter/ipset/{ip_set,ip_set_hash,ip_set_bitmap}.h and linux/netfilter/nfnetlink.h, under the headers' own names. */

export const NFNL_SUBSYS_IPSET = 6

export const IPSET_CMD_CREATE = 2
export const IPSET_CMD_DESTROY = 3
export const IPSET_CMD_SWAP = 6
export const IPSET_CMD_LIST = 7
export const IPSET_CMD_ADD = 9
export const IPSET_CMD_DEL = 10
export const IPSET_CMD_TYPE = 13
export const IPSET_CMD_GET_BYNAME = 14
export const IPSET_CMD_GET_BYINDEX = 15

export const IPSET_ATTR_DATA = 7
export const IPSET_ATTR_ADT = 8

export const IPSET_FLAG_LIST_SETNAME = 2
export const IPSET_FLAG_LIST_HEADER = 4
export const IPSET_FLAG_NOMATCH = 4

export const IPSET_ERR_FIND_TYPE = 4098

/** The ipset attributes that kprobe uses, as linux/netfilter/ipset/ip_set.h numbers them. */

/** The flag of numbers and addresses that the kernel accepts only with it (ip_set_attr_netorder in ip_set.h). */
const NET = NLA_F_NET_BYTEORDER

export const ADDRESS = attributeSet({
  v4: [1 | NET, octets],
  v6: [2 | NET, octets],
})

export const ENTRY = attributeSet({
  ip: [1, nested(ADDRESS)],
  port: [4 | NET, u16be],
  protocol: [7, u8],
  ip2: [20, nested(ADDRESS)],
  prefix2: [21, u8],
  flags: [8 | NET, u32be],
  line: [9 | NET, u32be],
})

export const LIST_ENTRY = attributeSet({ entry: [IPSET_ATTR_DATA, nested(ENTRY)] })

/** The options to create a set with, and the values that the kernel reports. */
const SHAPE = attributeSet({
  portFrom: [4 | NET, u16be],
  portTo: [5 | NET, u16be],
  timeout: [6 | NET, u32be],
  flags: [8 | NET, u32be],
  initialValue: [17 | NET, u32be],
  hashSize: [18 | NET, u32be],
  maxElements: [19 | NET, u32be],
  netmask: [20, u8],
  bitmask: [12, nested(ADDRESS)],
  bucketSize: [21, u8],
  elements: [24 | NET, u32be],
  references: [25 | NET, u32be],
  memoryBytes: [26 | NET, u32be],
})

const HEAD = {
  protocol: [1, u8],
  name: [2, string],
} as const

const KIND = {
  ...HEAD,
  type: [3, string],
  revision: [4, u8],
  family: [5, u8],
} as const

/** The attributes of sets of every type, including types that kprobe does not know. */
export const KIND_OF_SET = attributeSet(KIND)

/** The attributes of a set of ours, or of a request about one. */
export const SET = attributeSet({
  ...KIND,
  flags: [6, u32be],
  shape: [IPSET_ATTR_DATA, nested(SHAPE)],
  entries: [IPSET_ATTR_ADT, listOf(IPSET_ATTR_DATA, nested(ENTRY))],
})

/** The attributes of IPSET_CMD_ADD and IPSET_CMD_DEL before their entries. */
export const ENTRIES = attributeSet({ ...HEAD, line: [9 | NET, u32be] })

export const SWAP = attributeSet({ ...HEAD, with: [3, string] })

/** In the copy of a rejected message: the element that the kernel rejected. */
export const REFUSED = attributeSet({ line: [9 | NET, u32be] })

export const TYPE = attributeSet({
  protocol: [1, u8],
  type: [3, string],
  family: [5, u8],
  revision: [4, u8],
  revisionMin: [10, u8],
})

/** IPSET_CMD_GET_BYNAME and IPSET_CMD_GET_BYINDEX. */
export const INDEX = attributeSet({ ...HEAD, index: [11 | NET, u16be] })

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

/** An entry of a set; fields that the type does not use are undefined. */
export interface IpsetEntry {
  readonly ip?: Ip
  /** IPPROTO_*. */
  readonly protocol?: number
  readonly port?: number
  /** For hash:ip,port,ip and hash:ip,port,net. */
  readonly ip2?: Ip
  /** For hash:ip,port,net: 1 to 32, or 128. */
  readonly prefix2?: number
  /** For hash:ip,port,net: addresses of this network are not in the set. kprobe writes no such entry. */
  readonly nomatch?: true
}

/** The kernel's description of a set: cheap to read, and enough to detect changes by another program. */
export interface IpsetHeader {
  readonly set: Ipset
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

interface SetType {
  /**
   * The newest revision whose sets kprobe reads (net/netfilter/ipset/ip_set_*.c, "revision"). Every revision
   * understands the sets that kprobe writes; the kernel lists later features only for sets that were created with
   * them.
   */
  readonly revisionMax: number
  readonly fields: readonly (keyof IpsetEntry)[]
}

export const SET_TYPES: Readonly<Record<IpsetType, SetType>> = {
  'hash:ip': { revisionMax: 6, fields: ['ip'] },
  'hash:ip,port': { revisionMax: 7, fields: ['ip', 'protocol', 'port'] },
  'hash:ip,port,ip': { revisionMax: 6, fields: ['ip', 'protocol', 'port', 'ip2'] },
  'hash:ip,port,net': { revisionMax: 8, fields: ['ip', 'protocol', 'port', 'ip2', 'prefix2'] },
  'bitmap:port': { revisionMax: 3, fields: ['port'] },
}

export const BITMAP_ELEMENTS_MAX = 65_536
/** IPSET_MAXNAMELEN without the NUL. */
export const SET_NAME_BYTES_MAX = 31

export function setTypeOf(name: string): IpsetType | undefined {
  return isSetType(name) ? name : undefined
}

function isSetType(name: string): name is IpsetType {
  return Object.hasOwn(SET_TYPES, name)
}

/** Returns the NFPROTO_* that the kernel uses for a set of this type and family: a bitmap:port has none. */
export function familyNumber(type: IpsetType, family: Family): number {
  if (type === 'bitmap:port') return NFPROTO_UNSPEC
  return family === 'IPv4' ? NFPROTO_IPV4 : NFPROTO_IPV6
}

/** Returns the family of a number; undefined for a number that a set of this type does not have. */
export function familyFromNumber(type: IpsetType, family: number): Family | undefined {
  if (family === familyNumber(type, 'IPv4')) return 'IPv4'
  return family === familyNumber(type, 'IPv6') ? 'IPv6' : undefined
}

/**
 * One operation in ipset's verbs. The kernel carries out each by itself and in order; a later failure undoes none of
 * them. add-entries and delete-entries are idempotent: an entry that exists, or is gone, already is no error.
 */
export type IpsetOperation =
  | { readonly verb: 'create'; readonly set: Ipset }
  | { readonly verb: 'destroy'; readonly name: string }
  /** Both sets exist and have one type. Rules that refer to one of the names then see the other content. */
  | { readonly verb: 'swap'; readonly name: string; readonly with: string }
  | (GroupedEntries & { readonly verb: 'add-entries' })
  | (GroupedEntries & { readonly verb: 'delete-entries' })

export interface GroupedEntries {
  readonly set: Ipset
  readonly entries: readonly IpsetEntry[]
  /** The group of the entry with the same index, so that an error can name the Service. */
  readonly groups: readonly string[]
}

/** Returns a map key for an entry of a set. entryText in print.ts is the readable form. */
export function entryKey(setName: string, { ip, protocol, port, ip2, prefix2 }: IpsetEntry): string {
  // Each number takes one UTF-16 unit, and 0xffff stands for an absent one, so the text after the NUL is unambiguous.
  const numbers = String.fromCharCode(
    (ip?.length ?? 0) | ((ip2?.length ?? 0) << 8),
    protocol ?? 0xffff,
    prefix2 ?? 0xffff,
    port === undefined ? 0 : 1,
    port ?? 0,
  )
  return `${setName}\0${numbers}${ip ?? ''}${ip2 ?? ''}`
}

/** Prints whole sets as lines of `ipset save`, in the given order of sets and entries. */
export function* printSets(listings: Iterable<IpsetListing>): IterableIterator<string> {
  for (const listing of listings) {
    yield createText(listing)
    for (const entry of listing.entries) yield `add ${listing.set.name} ${entryText(listing.set, entry)}`
  }
}

/** Prints the `create` line of a set as `ipset save` does, with the values that the kernel reports. */
export function createText(header: Pick<IpsetHeader, 'set' | 'bucketSize' | 'initialValue'>): string {
  const { set, bucketSize, initialValue } = header
  const { name, type, family, hashSize, maxElements } = set
  if (type === 'bitmap:port') return `create ${name} ${type} range 0-65535`
  const kind = `${type} family ${family === 'IPv4' ? 'inet' : 'inet6'}`
  const size = `hashsize ${hashSize} maxelem ${maxElements}`
  const buckets = bucketSize === undefined ? '' : ` bucketsize ${bucketSize}`
  const start = initialValue === undefined ? '' : ` initval 0x${initialValue.toString(16).padStart(8, '0')}`
  return `create ${name} ${kind} ${size}${buckets}${start}`
}

/** Prints an entry as `ipset save` does: `10.96.0.1,tcp:443`, `10.0.0.1,tcp:80,10.0.0.0/8`, `30080`. */
export function entryText({ type }: Pick<Ipset, 'type'>, entry: IpsetEntry): string {
  const { ip = '', protocol = 0, port = 0, ip2 = '', prefix2, nomatch } = entry
  switch (type) {
    case 'bitmap:port':
      return String(port)
    case 'hash:ip':
      return formatIpAsC(ip)
    case 'hash:ip,port':
      return `${formatIpAsC(ip)},${protocolText(protocol)}:${port}`
    case 'hash:ip,port,ip':
      return `${formatIpAsC(ip)},${protocolText(protocol)}:${port},${formatIpAsC(ip2)}`
    case 'hash:ip,port,net': {
      const isHost = prefix2 === undefined || prefix2 === ip2.length * 8
      const net = `${formatIpAsC(ip2)}${isHost ? '' : `/${prefix2}`}`
      return `${formatIpAsC(ip)},${protocolText(protocol)}:${port},${net}${nomatch === true ? ' nomatch' : ''}`
    }
  }
}

const PROTOCOLS: Readonly<Record<number, string>> = { 6: 'tcp', 17: 'udp', 132: 'sctp', 136: 'udplite' }

/** Returns the name of a protocol with ports; other protocols, which have no ports in a set, by number. */
export function protocolText(protocol: number): string {
  return PROTOCOLS[protocol] ?? String(protocol)
}

type Meaning = NonNullable<NetlinkErrorDetails['meaning']>

type Meanings = ReadonlyMap<number, Meaning>

function meanings(...rows: (readonly [number: number, code: string, words: string])[]): Meanings {
  return new Map(rows.map(([number, code, words]) => [number, { code, words }]))
}

/** ipset's own error numbers, 4096 and above. */
export const COMMON = meanings(
  [4097, 'IPSET_ERR_PROTOCOL', 'The kernel does not understand the request'],
  [IPSET_ERR_FIND_TYPE, 'IPSET_ERR_FIND_TYPE', 'The kernel has no such type of sets, or not this revision'],
  [4099, 'IPSET_ERR_MAX_SETS', 'The kernel has no room for another set'],
  [4100, 'IPSET_ERR_BUSY', 'The set is in use: a rule or a set refers to it, or another program lists it'],
  [4101, 'IPSET_ERR_EXIST_SETNAME2', 'There is no set with the second name'],
  [4102, 'IPSET_ERR_TYPE_MISMATCH', 'The two sets are of different types'],
  [4103, 'IPSET_ERR_EXIST', 'The entry to add is in the set, or the entry to delete is not'],
  [4104, 'IPSET_ERR_INVALID_CIDR', 'Invalid length of a prefix'],
  [4105, 'IPSET_ERR_INVALID_NETMASK', 'Invalid netmask'],
  [4106, 'IPSET_ERR_INVALID_FAMILY', 'The type of the set does not support this family'],
  [4107, 'IPSET_ERR_TIMEOUT', 'The set has no timeouts'],
  [4108, 'IPSET_ERR_REFERENCED', 'The set is in use: a rule or a set refers to it'],
  [4109, 'IPSET_ERR_IPADDR_IPV4', 'An IPv4 address is expected'],
  [4110, 'IPSET_ERR_IPADDR_IPV6', 'An IPv6 address is expected'],
)

/** Bitmap and hash types share these numbers. */
export const OF_HASHES = meanings(
  [4352, 'IPSET_ERR_HASH_FULL', 'The set is full'],
  [4353, 'IPSET_ERR_HASH_ELEM', 'The address 0.0.0.0, or ::, cannot be in a set of this type'],
  [4354, 'IPSET_ERR_INVALID_PROTO', 'Invalid protocol'],
  [4355, 'IPSET_ERR_MISSING_PROTO', 'The protocol is missing'],
  [4356, 'IPSET_ERR_HASH_RANGE_UNSUPPORTED', 'Ranges cannot be in a set of this type'],
  [4357, 'IPSET_ERR_HASH_RANGE', 'Invalid range'],
)
export const OF_BITMAPS = meanings(
  [4352, 'IPSET_ERR_BITMAP_RANGE', 'The port is outside the range of the set'],
  [4353, 'IPSET_ERR_BITMAP_RANGE_SIZE', 'The range is larger than a set of this type can have'],
)

/** Creates a NetlinkError with ipset's own name and words for the errno, where it has them. */
export function ipsetError(details: NetlinkErrorDetails, type?: IpsetType): NetlinkError {
  const own = type === 'bitmap:port' ? OF_BITMAPS : OF_HASHES
  const { errno } = details
  return new NetlinkError({ ...details, meaning: COMMON.get(errno) ?? own.get(errno) })
}

export interface IpsetFailure {
  readonly operation: IpsetOperation
  /** The entries that contain the rejected one; the entries before it in the message are in the set. */
  readonly entries: readonly { readonly entry: IpsetEntry; readonly group: string }[]
  /** Name of the errno, or of ipset's own code (IPSET_ERR_HASH_FULL). */
  readonly code: string
  readonly error: Error
}

type Entries = IpsetFailure['entries']

/** Returns the words for an operation in errors: `add` and `KUBE-CLUSTER-IP 10.96.0.1,tcp:443 (ns1/web)`. */
export function describeIpsetOperation(operation: IpsetOperation, entries: Entries) {
  switch (operation.verb) {
    case 'create':
      return { operation: 'create', object: `${operation.set.name} ${operation.set.type}` }
    case 'destroy':
      return { operation: 'destroy', object: operation.name }
    case 'swap':
      return { operation: 'swap', object: `${operation.name} ${operation.with}` }
    case 'add-entries':
    case 'delete-entries': {
      const verb = operation.verb === 'add-entries' ? 'add' : 'del'
      const object = [operation.set.name, ...entryWords(operation.set, entries)].join(' ')
      return { operation: verb, object }
    }
  }
}

function entryWords(set: Parameters<typeof entryText>[0], entries: Entries): readonly string[] {
  const [first, second] = entries
  const what = first !== undefined && second === undefined ? [entryText(set, first.entry)] : []
  const groups = groupsText(
    entries.map(({ group }) => group),
    'entries',
  )
  return groups === '' ? what : [...what, groups]
}
