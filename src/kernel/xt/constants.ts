/** Constants of the kernel headers under linux/netfilter, under their own names. */

export const IPPROTO_TCP = 6
export const IPPROTO_UDP = 17
export const IPPROTO_SCTP = 132

/** nf_tables.h: expressions that only iptables writes, or that only rules of other programs have. */
export const NFT_CMP_LT = 2
export const NFT_CMP_LTE = 3
export const NFT_CMP_GT = 4
export const NFT_CMP_GTE = 5
export const NFT_RANGE_EQ = 0
export const NFT_RANGE_NEQ = 1

/** nf_conntrack_common.h and xt_conntrack.h: bits of a conntrack state. */
export const XT_CONNTRACK_STATE_INVALID = 1 << 0
export const XT_CONNTRACK_STATE_ESTABLISHED = 1 << 1
export const XT_CONNTRACK_STATE_RELATED = 1 << 2
export const XT_CONNTRACK_STATE_NEW = 1 << 3
export const XT_CONNTRACK_STATE_SNAT = 1 << 6
export const XT_CONNTRACK_STATE_DNAT = 1 << 7
const XT_CONNTRACK_STATE_UNTRACKED = 1 << 8
export const XT_CONNTRACK_STATE = 1 << 0

export const XT_COMMENT_LENGTH_MAX = 255

export const XT_TCP_INV_SRCPT = 0x01
export const XT_TCP_INV_DSTPT = 0x02
export const XT_SCTP_SRC_PORTS = 0x01
export const XT_SCTP_DEST_PORTS = 0x02

export const XT_STATISTIC_MODE_RANDOM = 0
export const XT_STATISTIC_MODE_NTH = 1
export const XT_STATISTIC_INVERT = 1
/** Random numbers have 31 bits. */
export const XT_STATISTIC_UNITS = 2 ** 31

export const XT_RECENT_CHECK = 1 << 0
export const XT_RECENT_SET = 1 << 1
export const XT_RECENT_REAP = 1 << 5
export const XT_RECENT_SOURCE = 0
export const XT_RECENT_NAME_LEN = 200

/** Types of addresses are `1 << RTN_*`. */
export const XT_ADDRTYPE_LOCAL = 1 << 2
export const XT_ADDRTYPE_INVERT_SOURCE = 0x1
export const XT_ADDRTYPE_INVERT_DEST = 0x2

export const XT_PHYSDEV_OP_ISIN = 0x08

export const XT_IPVS_IPVS_PROPERTY = 1 << 0
export const XT_IPVS_PROTO = 1 << 1
export const XT_IPVS_VADDR = 1 << 2
export const XT_IPVS_VPORT = 1 << 3

export const NFACCT_NAME_MAX = 32

/** iptables' words for numbers: the protocols of /etc/protocols, and those that iptables knows without it. */
const PROTOCOLS: ReadonlyMap<number, string> = new Map([
  [1, 'icmp'],
  [2, 'igmp'],
  [4, 'ipencap'],
  [6, 'tcp'],
  [17, 'udp'],
  [33, 'dccp'],
  [41, 'ipv6'],
  [46, 'rsvp'],
  [47, 'gre'],
  [50, 'esp'],
  [51, 'ah'],
  [58, 'ipv6-icmp'],
  [88, 'eigrp'],
  [89, 'ospf'],
  [94, 'ipip'],
  [103, 'pim'],
  [108, 'ipcomp'],
  [112, 'vrrp'],
  [115, 'l2tp'],
  [132, 'sctp'],
  [135, 'mobility-header'],
  [136, 'udplite'],
  [137, 'mpls-in-ip'],
])

export function protocolWord(number: number): string {
  return PROTOCOLS.get(number) ?? `${number}`
}

/** XT_CONNTRACK_STATE_*, in print order. */
export const STATES: readonly (readonly [bit: number, word: string])[] = [
  [XT_CONNTRACK_STATE_INVALID, 'INVALID'],
  [XT_CONNTRACK_STATE_NEW, 'NEW'],
  [XT_CONNTRACK_STATE_RELATED, 'RELATED'],
  [XT_CONNTRACK_STATE_ESTABLISHED, 'ESTABLISHED'],
  [XT_CONNTRACK_STATE_UNTRACKED, 'UNTRACKED'],
  [XT_CONNTRACK_STATE_SNAT, 'SNAT'],
  [XT_CONNTRACK_STATE_DNAT, 'DNAT'],
]

/** RTN_*: an address of type n has bit n. */
export const ADDRESS_TYPES: readonly string[] = [
  'UNSPEC',
  'UNICAST',
  'LOCAL',
  'BROADCAST',
  'ANYCAST',
  'MULTICAST',
  'BLACKHOLE',
  'UNREACHABLE',
  'PROHIBIT',
  'THROW',
  'NAT',
  'XRESOLVE',
]
