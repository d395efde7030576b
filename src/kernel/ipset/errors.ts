import { NetlinkError, type NetlinkErrorDetails } from '../../netlink/errors.ts'
import * as ipset from './constants.ts'
import type { IpsetEntry, IpsetOperation, IpsetType } from './state.ts'
import { entryText } from './state.ts'

type Meaning = NonNullable<NetlinkErrorDetails['meaning']>

type Code = Extract<keyof typeof ipset, `IPSET_ERR_${string}`>
const NUMBERS: Readonly<Record<Code, number>> = ipset

function meanings(words: Readonly<Partial<Record<Code, string>>>): ReadonlyMap<number, Meaning> {
  const codes = Object.keys(words).filter(isCode)
  return new Map(codes.map(code => [NUMBERS[code], { code, words: words[code] ?? '' }]))
}

function isCode(name: string): name is Code {
  return Object.hasOwn(NUMBERS, name)
}

/** ipset's own error numbers, 4096 and above. */
const COMMON = meanings({
  IPSET_ERR_PROTOCOL: 'The kernel does not understand the request',
  IPSET_ERR_FIND_TYPE: 'The kernel has no such type of sets, or not this revision',
  IPSET_ERR_MAX_SETS: 'The kernel has no room for another set',
  IPSET_ERR_BUSY: 'The set is in use: a rule or a set refers to it, or another program lists it',
  IPSET_ERR_EXIST_SETNAME2: 'There is no set with the second name',
  IPSET_ERR_TYPE_MISMATCH: 'The two sets are of different types',
  IPSET_ERR_EXIST: 'The entry to add is in the set, or the entry to delete is not',
  IPSET_ERR_INVALID_CIDR: 'Invalid length of a prefix',
  IPSET_ERR_INVALID_NETMASK: 'Invalid netmask',
  IPSET_ERR_INVALID_FAMILY: 'The type of the set does not support this family',
  IPSET_ERR_TIMEOUT: 'The set has no timeouts',
  IPSET_ERR_REFERENCED: 'The set is in use: a rule or a set refers to it',
  IPSET_ERR_IPADDR_IPV4: 'An IPv4 address is expected',
  IPSET_ERR_IPADDR_IPV6: 'An IPv6 address is expected',
})

/** Bitmap and hash types share these numbers. */
const OF_HASHES = meanings({
  IPSET_ERR_HASH_FULL: 'The set is full',
  IPSET_ERR_HASH_ELEM: 'The address 0.0.0.0, or ::, cannot be in a set of this type',
  IPSET_ERR_INVALID_PROTO: 'Invalid protocol',
  IPSET_ERR_MISSING_PROTO: 'The protocol is missing',
  IPSET_ERR_HASH_RANGE_UNSUPPORTED: 'Ranges cannot be in a set of this type',
  IPSET_ERR_HASH_RANGE: 'Invalid range',
})
const OF_BITMAPS = meanings({
  IPSET_ERR_BITMAP_RANGE: 'The port is outside the range of the set',
  IPSET_ERR_BITMAP_RANGE_SIZE: 'The range is larger than a set of this type can have',
})

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
