/** linux/netfilter/nfnetlink_conntrack.h and related headers, under their own names. */

export const NFNL_SUBSYS_CTNETLINK = 1

export const IPCTNL_MSG_CT_NEW = 0
export const IPCTNL_MSG_CT_GET = 1
export const IPCTNL_MSG_CT_DELETE = 2
export const IPCTNL_MSG_CT_GET_STATS_CPU = 4
export const IPCTNL_MSG_CT_GET_STATS = 5

export const CTA_TUPLE_ORIG = 1
export const CTA_TUPLE_REPLY = 2

export const CTA_TUPLE_IP = 1
export const CTA_TUPLE_PROTO = 2

export const CTA_IP_V4_SRC = 1
export const CTA_IP_V4_DST = 2

export const CTA_PROTO_NUM = 1
export const CTA_PROTO_SRC_PORT = 2
export const CTA_PROTO_DST_PORT = 3

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
