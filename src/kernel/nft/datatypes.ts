/**
 * Numbers of nft (include/datatype.h, include/rule.h) and libnftnl (include/libnftnl/udata.h) for data that the
 * kernel only stores. They decide how `nft list` prints kprobe's tables.
 */
export const TYPE_NFPROTO = 2
export const TYPE_INTEGER = 4
export const TYPE_IPADDR = 7
export const TYPE_IP6ADDR = 8
export const TYPE_INET_PROTOCOL = 12
export const TYPE_INET_SERVICE = 13
export const TYPE_MARK = 19
export const TYPE_ICMP6_TYPE = 29
export const TYPE_CLASSID = 23
const TYPE_BITS = 6

/** Returns the type number of a concatenation, first field first; a single type is its own number. */
export function concatenatedType(...types: readonly number[]): number {
  return types.reduce((number, type) => (number << TYPE_BITS) | type, 0)
}

export const NFTNL_UDATA_TABLE_COMMENT = 0
export const NFTNL_UDATA_RULE_COMMENT = 0
export const NFTNL_UDATA_SET_ELEM_COMMENT = 0
export const NFTNL_UDATA_SET_KEYBYTEORDER = 0
export const NFTNL_UDATA_SET_DATABYTEORDER = 1
export const NFTNL_UDATA_SET_KEY_TYPEOF = 3
export const NFTNL_UDATA_SET_DATA_TYPEOF = 4
export const NFTNL_UDATA_SET_DATA_INTERVAL = 6
export const BYTEORDER_INVALID = 0
export const BYTEORDER_HOST_ENDIAN = 1
export const BYTEORDER_BIG_ENDIAN = 2

/** enum expr_types */
export const EXPR_VERDICT = 1
export const EXPR_PAYLOAD = 7
export const EXPR_META = 9
export const EXPR_CONCAT = 13
export const EXPR_NUMGEN = 23
/** enum proto_bases, enum proto_desc_id (include/proto.h), and fields of the headers. */
export const PROTO_BASE_NETWORK_HDR = 2
export const PROTO_BASE_TRANSPORT_HDR = 3
export const PROTO_DESC_UDP = 6
export const PROTO_DESC_TCP = 8
export const PROTO_DESC_SCTP = 10
export const PROTO_DESC_TH = 11
export const PROTO_DESC_IP = 12
export const PROTO_DESC_IP6 = 13
/** TCP, UDP and SCTP have the same number for this field. */
export const THDR_DPORT = 2
export const IPHDR_SADDR = 11
export const IPHDR_DADDR = 12
export const IP6HDR_SADDR = 8
export const IP6HDR_DADDR = 9
