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

export const IPSET_ERR_PROTOCOL = 4097
export const IPSET_ERR_FIND_TYPE = 4098
export const IPSET_ERR_MAX_SETS = 4099
export const IPSET_ERR_BUSY = 4100
export const IPSET_ERR_EXIST_SETNAME2 = 4101
export const IPSET_ERR_TYPE_MISMATCH = 4102
export const IPSET_ERR_EXIST = 4103
export const IPSET_ERR_INVALID_CIDR = 4104
export const IPSET_ERR_INVALID_NETMASK = 4105
export const IPSET_ERR_INVALID_FAMILY = 4106
export const IPSET_ERR_TIMEOUT = 4107
export const IPSET_ERR_REFERENCED = 4108
export const IPSET_ERR_IPADDR_IPV4 = 4109
export const IPSET_ERR_IPADDR_IPV6 = 4110
export const IPSET_ERR_HASH_FULL = 4352
export const IPSET_ERR_HASH_ELEM = 4353
export const IPSET_ERR_INVALID_PROTO = 4354
export const IPSET_ERR_MISSING_PROTO = 4355
export const IPSET_ERR_HASH_RANGE_UNSUPPORTED = 4356
export const IPSET_ERR_HASH_RANGE = 4357
export const IPSET_ERR_BITMAP_RANGE = 4352
export const IPSET_ERR_BITMAP_RANGE_SIZE = 4353
