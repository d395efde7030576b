/**
 * The numbers that nft (include/datatype.h, include/rule.h) and libnftnl (include/libnftnl/udata.h) give to things the
 * kernel only stores. They decide how `nft list` prints us.
 */
export const TYPE_IPADDR = 7
export const TYPE_IP6ADDR = 8
export const TYPE_INET_PROTOCOL = 12
export const TYPE_INET_SERVICE = 13
export const TYPE_MARK = 19
const TYPE_BITS = 6

/** The type number of a concatenation, first field first; one type alone is itself. */
export function concatenatedType(...types: readonly number[]): number {
  return types.reduce((number, type) => (number << TYPE_BITS) | type, 0)
}

export const NFTNL_UDATA_TABLE_COMMENT = 0
export const NFTNL_UDATA_RULE_COMMENT = 0
export const NFTNL_UDATA_SET_ELEM_COMMENT = 0
export const NFTNL_UDATA_SET_KEYBYTEORDER = 0
export const NFTNL_UDATA_SET_DATABYTEORDER = 1
export const BYTEORDER_HOST_ENDIAN = 1
