import { NetlinkError, type NetlinkErrorDetails } from '../../netlink/errors.ts'
import {
  entryText,
  IPSET_ERR_FIND_TYPE,
  type IpsetEntry,
  type IpsetOperation,
  type IpsetType,
} from './state.ts'

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

/** Maximum number of groups that an error names; beyond it the error counts them. */
const OWNERS_MAX = 3

function entryWords(set: Parameters<typeof entryText>[0], entries: Entries): readonly string[] {
  const [first, second] = entries
  const what = first !== undefined && second === undefined ? [entryText(set, first.entry)] : []
  const groups = new Set(entries.map(({ group }) => group).filter(group => group !== ''))
  if (groups.size === 0) return what
  if (groups.size > OWNERS_MAX)
    return [...what, `(one of ${entries.length} entries of ${groups.size} groups)`]
  return [...what, `(${[...groups].join(', ')})`]
}
