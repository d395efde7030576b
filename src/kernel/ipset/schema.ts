import { octets, string, u8, u16be, u32be } from '../../netlink/attribute.ts'
import { NLA_F_NET_BYTEORDER } from '../../netlink/constants.ts'
import { attributeSet, listOf, nested } from '../../netlink/schema.ts'
import * as ipset from './constants.ts'

/** The ipset attributes that kprobe uses, as linux/netfilter/ipset/ip_set.h numbers them. */

/** The flag of numbers and addresses that the kernel accepts only with it (ip_set_attr_netorder in ip_set.h). */
const NET = NLA_F_NET_BYTEORDER

export const ADDRESS = attributeSet({
  v4: [ipset.IPSET_ATTR_IPADDR_IPV4 | NET, octets],
  v6: [ipset.IPSET_ATTR_IPADDR_IPV6 | NET, octets],
})

/** One element. */
export const ENTRY = attributeSet({
  ip: [ipset.IPSET_ATTR_IP, nested(ADDRESS)],
  port: [ipset.IPSET_ATTR_PORT | NET, u16be],
  protocol: [ipset.IPSET_ATTR_PROTO, u8],
  ip2: [ipset.IPSET_ATTR_IP2, nested(ADDRESS)],
  prefix2: [ipset.IPSET_ATTR_CIDR2, u8],
  flags: [ipset.IPSET_ATTR_CADT_FLAGS | NET, u32be],
  line: [ipset.IPSET_ATTR_CADT_LINENO | NET, u32be],
})

/** One element of a list. */
export const LIST_ENTRY = attributeSet({ entry: [ipset.IPSET_ATTR_DATA, nested(ENTRY)] })

/** The options to create a set with, and the values that the kernel reports. */
const SHAPE = attributeSet({
  portFrom: [ipset.IPSET_ATTR_PORT | NET, u16be],
  portTo: [ipset.IPSET_ATTR_PORT_TO | NET, u16be],
  timeout: [ipset.IPSET_ATTR_TIMEOUT | NET, u32be],
  flags: [ipset.IPSET_ATTR_CADT_FLAGS | NET, u32be],
  initialValue: [ipset.IPSET_ATTR_INITVAL | NET, u32be],
  hashSize: [ipset.IPSET_ATTR_HASHSIZE | NET, u32be],
  maxElements: [ipset.IPSET_ATTR_MAXELEM | NET, u32be],
  netmask: [ipset.IPSET_ATTR_NETMASK, u8],
  bitmask: [ipset.IPSET_ATTR_BITMASK, nested(ADDRESS)],
  bucketSize: [ipset.IPSET_ATTR_BUCKETSIZE, u8],
  elements: [ipset.IPSET_ATTR_ELEMENTS | NET, u32be],
  references: [ipset.IPSET_ATTR_REFERENCES | NET, u32be],
  memoryBytes: [ipset.IPSET_ATTR_MEMSIZE | NET, u32be],
})

const HEAD = {
  protocol: [ipset.IPSET_ATTR_PROTOCOL, u8],
  name: [ipset.IPSET_ATTR_SETNAME, string],
} as const

const KIND = {
  ...HEAD,
  type: [ipset.IPSET_ATTR_TYPENAME, string],
  revision: [ipset.IPSET_ATTR_REVISION, u8],
  family: [ipset.IPSET_ATTR_FAMILY, u8],
} as const

/** The attributes of sets of every type, including types that kprobe does not know. */
export const KIND_OF_SET = attributeSet(KIND)

/** The attributes of a set of ours, or of a request about one. */
export const SET = attributeSet({
  ...KIND,
  flags: [ipset.IPSET_ATTR_FLAGS, u32be],
  shape: [ipset.IPSET_ATTR_DATA, nested(SHAPE)],
  entries: [ipset.IPSET_ATTR_ADT, listOf(ipset.IPSET_ATTR_DATA, nested(ENTRY))],
})

/** The attributes of IPSET_CMD_ADD and IPSET_CMD_DEL before their entries. */
export const ENTRIES = attributeSet({ ...HEAD, line: [ipset.IPSET_ATTR_LINENO | NET, u32be] })

/** IPSET_CMD_SWAP. */
export const SWAP = attributeSet({ ...HEAD, with: [ipset.IPSET_ATTR_SETNAME2, string] })

/** In the copy of a rejected message: the element that the kernel rejected. */
export const REFUSED = attributeSet({ line: [ipset.IPSET_ATTR_LINENO | NET, u32be] })

/** IPSET_CMD_TYPE. */
export const TYPE = attributeSet({
  protocol: [ipset.IPSET_ATTR_PROTOCOL, u8],
  type: [ipset.IPSET_ATTR_TYPENAME, string],
  family: [ipset.IPSET_ATTR_FAMILY, u8],
  revision: [ipset.IPSET_ATTR_REVISION, u8],
  revisionMin: [ipset.IPSET_ATTR_REVISION_MIN, u8],
})

/** IPSET_CMD_GET_BYNAME and IPSET_CMD_GET_BYINDEX. */
export const INDEX = attributeSet({ ...HEAD, index: [ipset.IPSET_ATTR_INDEX | NET, u16be] })
