/** linux/netfilter/nfnetlink_conntrack.h and related headers, under their own names. */

export const NFNL_SUBSYS_CTNETLINK = 1

export const IPCTNL_MSG_CT_NEW = 0
export const IPCTNL_MSG_CT_GET = 1
export const IPCTNL_MSG_CT_DELETE = 2
export const IPCTNL_MSG_CT_GET_STATS_CPU = 4
export const IPCTNL_MSG_CT_GET_STATS = 5

export const CTA_TUPLE_ORIG = 1
export const CTA_TUPLE_REPLY = 2
export const CTA_STATUS = 3
export const CTA_TIMEOUT = 7
export const CTA_MARK = 8
export const CTA_COUNTERS_ORIG = 9
export const CTA_COUNTERS_REPLY = 10
export const CTA_ID = 12
export const CTA_ZONE = 18
export const CTA_TIMESTAMP = 20
export const CTA_FILTER = 25
export const CTA_STATUS_MASK = 26

export const CTA_TUPLE_IP = 1
export const CTA_TUPLE_PROTO = 2
export const CTA_TUPLE_ZONE = 3

export const CTA_IP_V4_SRC = 1
export const CTA_IP_V4_DST = 2
export const CTA_IP_V6_SRC = 3
export const CTA_IP_V6_DST = 4

export const CTA_PROTO_NUM = 1
export const CTA_PROTO_SRC_PORT = 2
export const CTA_PROTO_DST_PORT = 3

export const CTA_FILTER_ORIG_FLAGS = 1

export const CTA_COUNTERS_PACKETS = 1
export const CTA_COUNTERS_BYTES = 2

export const CTA_TIMESTAMP_START = 1
export const CTA_TIMESTAMP_STOP = 2

export const CTA_STATS_INSERT_FAILED = 9
export const CTA_STATS_DROP = 10
export const CTA_STATS_EARLY_DROP = 11

export const CTA_STATS_GLOBAL_ENTRIES = 1
export const CTA_STATS_GLOBAL_MAX_ENTRIES = 2

export const IPS_SEEN_REPLY = 2
export const IPS_ASSURED = 4
export const IPS_CONFIRMED = 8
export const IPS_DST_NAT = 32

export const NFPROTO_UNSPEC = 0
export const NFPROTO_IPV4 = 2
export const NFPROTO_IPV6 = 10

export const IPPROTO_TCP = 6
export const IPPROTO_UDP = 17
export const IPPROTO_SCTP = 132

export const NFNLGRP_CONNTRACK_NEW = 1
export const NFNLGRP_CONNTRACK_DESTROY = 3
