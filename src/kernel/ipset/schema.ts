import { octets, string, u8, u16be, u32be } from '../../netlink/attribute.ts'
import { NLA_F_NET_BYTEORDER } from '../../netlink/constants.ts'
import { attributeSet, listOf, nested } from '../../netlink/schema.ts'

/** linux/netfilter/ipset/{ip_set,ip_set_hash,ip_set_bitmap}.h and linux/netfilter/nfnetlink.h, under the headers' own names. */

export const NFNL_SUBSYS_IPSET = 6

export const NFPROTO_UNSPEC = 0
export const NFPROTO_IPV4 = 2
export const NFPROTO_IPV6 = 10

export const IPSET_CMD_CREATE = 2
export const IPSET_CMD_DESTROY = 3
export const IPSET_CMD_SWAP = 6
export const IPSET_CMD_LIST = 7
export const IPSET_CMD_ADD = 9
export const IPSET_CMD_DEL = 10
export const IPSET_CMD_TYPE = 13
export const IPSET_CMD_GET_BYNAME = 14
export const IPSET_CMD_GET_BYINDEX = 15

/** Attributes of commands. */
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

/** One element. */
export const ENTRY = attributeSet({
  ip: [1, nested(ADDRESS)],
  port: [4 | NET, u16be],
  protocol: [7, u8],
  ip2: [20, nested(ADDRESS)],
  prefix2: [21, u8],
  flags: [8 | NET, u32be],
  line: [9 | NET, u32be],
})

/** One element of a list. */
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

/** IPSET_CMD_SWAP. */
export const SWAP = attributeSet({ ...HEAD, with: [3, string] })

/** In the copy of a rejected message: the element that the kernel rejected. */
export const REFUSED = attributeSet({ line: [9 | NET, u32be] })

/** IPSET_CMD_TYPE. */
export const TYPE = attributeSet({
  protocol: [1, u8],
  type: [3, string],
  family: [5, u8],
  revision: [4, u8],
  revisionMin: [10, u8],
})

/** IPSET_CMD_GET_BYNAME and IPSET_CMD_GET_BYINDEX. */
export const INDEX = attributeSet({ ...HEAD, index: [11 | NET, u16be] })
