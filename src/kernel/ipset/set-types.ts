import type { Family } from '../../base/ip.ts'
import { NFPROTO_IPV4, NFPROTO_IPV6, NFPROTO_UNSPEC } from './constants.ts'
import type { IpsetEntry, IpsetType } from './state.ts'

interface SetType {
  /**
   * The newest revision whose sets kprobe reads (net/netfilter/ipset/ip_set_*.c, "revision"). Every revision
   * understands the sets that kprobe writes; the kernel lists later features only for sets that were created with
   * them.
   */
  readonly revisionMax: number
  /** The fields of an entry. */
  readonly fields: readonly (keyof IpsetEntry)[]
}

export const SET_TYPES: Readonly<Record<IpsetType, SetType>> = {
  'hash:ip': { revisionMax: 6, fields: ['ip'] },
  'hash:ip,port': { revisionMax: 7, fields: ['ip', 'protocol', 'port'] },
  'hash:ip,port,ip': { revisionMax: 6, fields: ['ip', 'protocol', 'port', 'ip2'] },
  'hash:ip,port,net': { revisionMax: 8, fields: ['ip', 'protocol', 'port', 'ip2', 'prefix2'] },
  'bitmap:port': { revisionMax: 3, fields: ['port'] },
}

/** Number of ports of a bitmap:port. */
export const BITMAP_ELEMENTS_MAX = 65_536

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
