/** linux/netfilter/nf_tables.h and related headers, under their own names. */

export const NFPROTO_UNSPEC = 0
export const NFPROTO_INET = 1
export const NFPROTO_IPV4 = 2
export const NFPROTO_IPV6 = 10

export const NF_INET_PRE_ROUTING = 0
export const NF_INET_LOCAL_IN = 1
export const NF_INET_FORWARD = 2
export const NF_INET_LOCAL_OUT = 3
export const NF_INET_POST_ROUTING = 4

/** Priorities of hooks, equal in both families; linux/netfilter_ipv4.h. */
export const NF_IP_PRI_RAW = -300
export const NF_IP_PRI_CONNTRACK = -200
export const NF_IP_PRI_NAT_DST = -100
export const NF_IP_PRI_NAT_SRC = 100

export const IPPROTO_ICMP = 1
export const IPPROTO_TCP = 6
export const IPPROTO_UDP = 17
export const IPPROTO_ICMPV6 = 58
export const IPPROTO_SCTP = 132

export const NF_DROP = 0
export const NF_ACCEPT = 1
export const NFT_CONTINUE = -1
export const NFT_BREAK = -2
export const NFT_JUMP = -3
export const NFT_GOTO = -4
export const NFT_RETURN = -5

export const NFT_USERDATA_MAXLEN = 256
export const NFT_DATA_VALUE_MAXLEN = 64

export const NFT_REG_VERDICT = 0
export const NFT_REG_1 = 1
export const NFT_REG_4 = 4
export const NFT_REG32_00 = 8
export const NFT_REG32_15 = 23

export const NFT_MSG_NEWTABLE = 0
export const NFT_MSG_GETTABLE = 1
export const NFT_MSG_DELTABLE = 2
export const NFT_MSG_NEWCHAIN = 3
export const NFT_MSG_GETCHAIN = 4
export const NFT_MSG_DELCHAIN = 5
export const NFT_MSG_NEWRULE = 6
export const NFT_MSG_GETRULE = 7
export const NFT_MSG_DELRULE = 8
export const NFT_MSG_NEWSET = 9
export const NFT_MSG_GETSET = 10
export const NFT_MSG_DELSET = 11
export const NFT_MSG_NEWSETELEM = 12
export const NFT_MSG_GETSETELEM = 13
export const NFT_MSG_DELSETELEM = 14
export const NFT_MSG_NEWGEN = 15
export const NFT_MSG_GETGEN = 16
export const NFT_MSG_TRACE = 17

export const NFTA_LIST_ELEM = 1

export const NFT_TABLE_F_DORMANT = 0x1
export const NFT_TABLE_F_OWNER = 0x2
export const NFT_TABLE_F_PERSIST = 0x4

export const NFT_CHAIN_BASE = 0x1

export const NFTA_RULE_TABLE = 1
export const NFTA_RULE_CHAIN = 2
export const NFTA_RULE_HANDLE = 3
export const NFTA_RULE_EXPRESSIONS = 4
export const NFTA_RULE_USERDATA = 7
export const NFT_RULE_COMPAT_F_INV = 2

export const NFT_SET_ANONYMOUS = 0x1
export const NFT_SET_CONSTANT = 0x2
export const NFT_SET_INTERVAL = 0x4
export const NFT_SET_CONCAT = 0x80
export const NFT_SET_MAP = 0x8
export const NFT_SET_TIMEOUT = 0x10
export const NFT_SET_EVAL = 0x20

export const NFTA_SET_ELEM_LIST_ELEMENTS = 3

export const NFT_DATA_VERDICT = 0xffffff00

export const NFTA_EXPR_NAME = 1
export const NFTA_EXPR_DATA = 2

export const NFT_BITWISE_MASK_XOR = 0

export const NFT_CMP_EQ = 0
export const NFT_CMP_NEQ = 1

export const NFT_LOOKUP_F_INV = 0x1

export const NFT_DYNSET_OP_ADD = 0
export const NFT_DYNSET_OP_UPDATE = 1
export const NFT_DYNSET_OP_DELETE = 2

export const NFT_PAYLOAD_NETWORK_HEADER = 1
export const NFT_PAYLOAD_TRANSPORT_HEADER = 2

export const NFT_META_PRIORITY = 2
export const NFT_META_MARK = 3
export const NFT_META_IIFNAME = 6
export const NFT_META_OIFNAME = 7
export const NFT_META_NFTRACE = 12
export const NFT_META_NFPROTO = 15
export const NFT_META_L4PROTO = 16

export const NFT_CT_STATE = 0
export const NFT_CT_STATUS = 2
export const NFT_CT_MARK = 3
export const NFT_CT_ZONE = 17
export const IPS_SRC_NAT = 0x10
export const IPS_DST_NAT = 0x20

export const IPSET_DIM_MAX = 6
export const IPSET_INV_MATCH = 0x1
export const IPSET_DIM_ONE_SRC = 0x2

export const NFTA_COUNTER_BYTES = 1
export const NFTA_COUNTER_PACKETS = 2

export const NFT_SET_ELEM_INTERVAL_END = 1
export const NFT_REJECT_ICMP_UNREACH = 0
export const NFT_REJECT_TCP_RST = 1
export const ICMP_PORT_UNREACH = 3
export const ICMPV6_PORT_UNREACH = 4

export const NFT_NAT_SNAT = 0
export const NFT_NAT_DNAT = 1
export const NF_NAT_RANGE_MAP_IPS = 0x1
export const NF_NAT_RANGE_PROTO_SPECIFIED = 0x2
export const NF_NAT_RANGE_PROTO_RANDOM = 0x4
export const NF_NAT_RANGE_PERSISTENT = 0x8
export const NF_NAT_RANGE_PROTO_RANDOM_FULLY = 0x10

export const NFT_FIB_RESULT_ADDRTYPE = 3
export const NFTA_FIB_F_SADDR = 0x1
export const NFTA_FIB_F_DADDR = 0x2
export const NFTA_FIB_F_IIF = 0x8
export const RTN_UNICAST = 1
export const RTN_LOCAL = 2

export const NFT_NG_RANDOM = 1

export const NFT_HASH_JENKINS = 0

export const NFT_LIMIT_PKTS = 0

export const NFT_TRACETYPE_POLICY = 1
export const NFT_TRACETYPE_RETURN = 2
export const NFT_TRACETYPE_RULE = 3
