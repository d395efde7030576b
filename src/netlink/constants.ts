/** linux/socket.h, linux/netlink.h and linux/netfilter/nfnetlink.h, under the headers' own names. */

export const NETLINK_ROUTE = 0
export const NETLINK_SOCK_DIAG = 4
export const NETLINK_NETFILTER = 12
export const NETLINK_GENERIC = 16

export const AF_UNSPEC = 0
export const AF_INET = 2
export const AF_INET6 = 10

export const NLM_F_REQUEST = 0x01
export const NLM_F_MULTI = 0x02
export const NLM_F_ACK = 0x04
export const NLM_F_DUMP_INTR = 0x10
export const NLM_F_DUMP = 0x300
export const NLM_F_EXCL = 0x200
export const NLM_F_CREATE = 0x400
export const NLM_F_APPEND = 0x800
export const NLM_F_CAPPED = 0x100
export const NLM_F_ACK_TLVS = 0x200

export const NLMSG_HDRLEN = 16
export const NLMSG_ERROR = 2
export const NLMSG_DONE = 3
export const NLMSG_OVERRUN = 4
export const NLMSG_MIN_TYPE = 0x10

export const NLMSGERR_ATTR_MSG = 1
export const NLMSGERR_ATTR_OFFS = 2

export const NLA_HDRLEN = 4
export const NLA_F_NESTED = 0x8000
export const NLA_F_NET_BYTEORDER = 0x4000
export const NLA_TYPE_MASK = -0xc001

export const NFNETLINK_V0 = 0
export const NFNL_SUBSYS_ULOG = 4
export const NFNL_SUBSYS_NFTABLES = 10
export const NFNL_MSG_BATCH_BEGIN = 0x10
export const NFNL_MSG_BATCH_END = 0x11
export const NFNL_BATCH_GENID = 1
export const NFNLGRP_NFTABLES = 7
export const NFNLGRP_NFTRACE = 9
