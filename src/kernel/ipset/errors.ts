import { NetlinkError, type NetlinkErrorDetails } from '../../netlink/errors.ts'
import * as ipset from './constants.ts'
import type { IpsetType } from './state.ts'

type Meaning = NonNullable<NetlinkErrorDetails['meaning']>

/** ipset's own error numbers, 4096 and above. */
const COMMON: Readonly<Record<number, Meaning>> = {
  [ipset.IPSET_ERR_PROTOCOL]: {
    code: 'IPSET_ERR_PROTOCOL',
    words: 'The kernel does not understand the request',
  },
  [ipset.IPSET_ERR_FIND_TYPE]: {
    code: 'IPSET_ERR_FIND_TYPE',
    words: 'The kernel has no such type of sets, or not this revision',
  },
  [ipset.IPSET_ERR_MAX_SETS]: { code: 'IPSET_ERR_MAX_SETS', words: 'No more sets can be made' },
  [ipset.IPSET_ERR_BUSY]: {
    code: 'IPSET_ERR_BUSY',
    words: 'The set is in use: a rule or a set refers to it, or somebody is listing it',
  },
  [ipset.IPSET_ERR_EXIST_SETNAME2]: {
    code: 'IPSET_ERR_EXIST_SETNAME2',
    words: 'There is no set with the second name',
  },
  [ipset.IPSET_ERR_TYPE_MISMATCH]: {
    code: 'IPSET_ERR_TYPE_MISMATCH',
    words: 'The two sets are of different types',
  },
  [ipset.IPSET_ERR_EXIST]: {
    code: 'IPSET_ERR_EXIST',
    words: 'The entry to add is in the set, or the entry to delete is not',
  },
  [ipset.IPSET_ERR_INVALID_CIDR]: { code: 'IPSET_ERR_INVALID_CIDR', words: 'Invalid length of a prefix' },
  [ipset.IPSET_ERR_INVALID_NETMASK]: { code: 'IPSET_ERR_INVALID_NETMASK', words: 'Invalid netmask' },
  [ipset.IPSET_ERR_INVALID_FAMILY]: {
    code: 'IPSET_ERR_INVALID_FAMILY',
    words: 'The type of the set does not know this family',
  },
  [ipset.IPSET_ERR_TIMEOUT]: { code: 'IPSET_ERR_TIMEOUT', words: 'The set has no timeouts' },
  [ipset.IPSET_ERR_REFERENCED]: {
    code: 'IPSET_ERR_REFERENCED',
    words: 'The set is in use: a rule or a set refers to it',
  },
  [ipset.IPSET_ERR_IPADDR_IPV4]: { code: 'IPSET_ERR_IPADDR_IPV4', words: 'An IPv4 address is expected' },
  [ipset.IPSET_ERR_IPADDR_IPV6]: { code: 'IPSET_ERR_IPADDR_IPV6', words: 'An IPv6 address is expected' },
}

/** Bitmap and hash types share these numbers. */
const OF_HASHES: Readonly<Record<number, Meaning>> = {
  [ipset.IPSET_ERR_HASH_FULL]: { code: 'IPSET_ERR_HASH_FULL', words: 'The set is full' },
  [ipset.IPSET_ERR_HASH_ELEM]: {
    code: 'IPSET_ERR_HASH_ELEM',
    words: 'The address 0.0.0.0, or ::, cannot be in a set of this type',
  },
  [ipset.IPSET_ERR_INVALID_PROTO]: { code: 'IPSET_ERR_INVALID_PROTO', words: 'Invalid protocol' },
  [ipset.IPSET_ERR_MISSING_PROTO]: { code: 'IPSET_ERR_MISSING_PROTO', words: 'The protocol is missing' },
  [ipset.IPSET_ERR_HASH_RANGE_UNSUPPORTED]: {
    code: 'IPSET_ERR_HASH_RANGE_UNSUPPORTED',
    words: 'Ranges cannot be in a set of this type',
  },
  [ipset.IPSET_ERR_HASH_RANGE]: { code: 'IPSET_ERR_HASH_RANGE', words: 'Invalid range' },
}

const OF_BITMAPS: Readonly<Record<number, Meaning>> = {
  [ipset.IPSET_ERR_BITMAP_RANGE]: {
    code: 'IPSET_ERR_BITMAP_RANGE',
    words: 'The port is outside the range of the set',
  },
  [ipset.IPSET_ERR_BITMAP_RANGE_SIZE]: {
    code: 'IPSET_ERR_BITMAP_RANGE_SIZE',
    words: 'The range is larger than a set of this type can have',
  },
}

/** Creates a NetlinkError with ipset's own name and words for the errno, where it has them. */
export function ipsetError(details: NetlinkErrorDetails, type?: IpsetType): NetlinkError {
  const own = type === 'bitmap:port' ? OF_BITMAPS : OF_HASHES
  const { errno } = details
  return new NetlinkError({ ...details, meaning: COMMON[errno] ?? own[errno] })
}
