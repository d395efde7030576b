import type { Ip } from '../../base/ip.ts'
import type { Octets } from '../../base/octets.ts'

/** An iptables rule as a value: the input of `iptables -A CHAIN`, and the output of iptables-save. */
export interface XtRule {
  readonly inInterface?: XtInterface
  readonly outInterface?: XtInterface
  readonly protocol?: XtProtocol
  readonly source?: XtAddress
  readonly destination?: XtAddress
  /** In the order of their `-m`, in which the kernel evaluates them. */
  readonly matches: readonly XtMatch[]
  /** Undefined for a rule that only counts packets. */
  readonly target: XtTarget | undefined
  /** See CompiledRule. No tool of iptables shows it, and it is no part of what two rules are compared by. */
  readonly userdata?: Octets
}

export interface XtInterface {
  /** A `+` at its end matches all names with this prefix. */
  readonly name: string
  readonly inverted: boolean
}

export interface XtProtocol {
  /** IPPROTO_*. */
  readonly number: number
  readonly inverted: boolean
}

export interface XtAddress {
  readonly ip: Ip
  /** As long as the address. Any bits, not only a prefix: 0.0.0.255 compares the last byte. */
  readonly mask: Octets
  readonly inverted: boolean
}

/** A range of ports, including both ends. */
export interface XtPorts {
  readonly from: number
  readonly to: number
  readonly inverted: boolean
}

/** The xtables matches, with the names and words of iptables-extensions(8). */
export type XtMatch =
  /** At most 255 bytes. */
  | { readonly kind: 'comment'; readonly text: string }
  | {
      readonly kind: 'tcp' | 'udp' | 'sctp'
      readonly sourcePorts?: XtPorts
      readonly destinationPorts?: XtPorts
    }
  /** `states` are XT_CONNTRACK_STATE_* bits, including XT_CONNTRACK_STATE_DNAT. */
  | { readonly kind: 'conntrack'; readonly states: number; readonly inverted: boolean }
  /** `--mode random`: `probability` in units of 1 / 2^31, as in the kernel. */
  | { readonly kind: 'statistic'; readonly probability: number }
  /** By the whole source address. `seconds` is 0 for none. */
  | {
      readonly kind: 'recent'
      readonly mode: 'set' | 'rcheck'
      readonly name: string
      readonly seconds: number
      readonly reap: boolean
    }
  | { readonly kind: 'mark'; readonly mark: number; readonly mask: number; readonly inverted: boolean }
  /** XT_ADDRTYPE_* bits of xt_addrtype.h; 0 matches every type. */
  | {
      readonly kind: 'addrtype'
      readonly sourceTypes: number
      readonly destinationTypes: number
      readonly sourceInverted?: true
      readonly destinationInverted?: true
    }
  | {
      readonly kind: 'set'
      readonly set: string
      readonly dimensions: readonly ('src' | 'dst')[]
      readonly inverted: boolean
    }
  | { readonly kind: 'nfacct'; readonly name: string }
  /** `--physdev-is-in` and its negation: whether the packet arrived through a bridge port. */
  | { readonly kind: 'physdev-is-in'; readonly inverted: boolean }
  /** `-m ipvs --vproto NUMBER --vaddr ADDRESS --vport PORT`; `vproto` is IPPROTO_*. */
  | { readonly kind: 'ipvs'; readonly vproto?: number; readonly vaddr: XtAddress; readonly vport: number }
  /** `-m limit --limit PER_SECOND/sec --limit-burst BURST`. */
  | { readonly kind: 'limit'; readonly perSecond: number; readonly burst: number }
  | XtUnknown

export type XtTarget =
  | { readonly kind: 'ACCEPT' | 'DROP' | 'RETURN' }
  | { readonly kind: 'jump' | 'goto'; readonly chain: string }
  /** `with`: icmp-port-unreachable and the like, in the words of iptables. */
  | { readonly kind: 'REJECT'; readonly with: string }
  /** `--set-xmark value/mask`: clears the bits of the mask, then flips those of the value. */
  | { readonly kind: 'MARK'; readonly value: number; readonly mask: number }
  | { readonly kind: 'MASQUERADE'; readonly randomFully: boolean }
  | { readonly kind: 'DNAT'; readonly ip: Ip; readonly port: number }
  /** Copies the first bytes of each packet, at once, after `prefix`, to the reader of an NFLOG group. */
  | { readonly kind: 'NFLOG'; readonly group: number; readonly prefix: string; readonly packetBytes: number }
  | XtUnknown

/** A part of another program's rule that has no value type: kept unchanged. */
export interface XtUnknown {
  readonly kind: 'unknown'
  /** Name of the match, target or expression; empty for bytes that are not an expression. */
  readonly name: string
  /** Revision of a match or target; 0 for an expression. */
  readonly revision: number
  readonly info: Octets
  /** An nf_tables expression in a form that iptables does not write. */
  readonly native?: true
}

/** Returns the chain that the rule leads to; undefined for a rule that leads to none. */
export function targetChain({ target }: XtRule): string | undefined {
  return target?.kind === 'jump' || target?.kind === 'goto' ? target.chain : undefined
}

/** Constants of the kernel headers under linux/netfilter, under their own names. */

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
export const XT_CONNTRACK_STATE_UNTRACKED = 1 << 8
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

/** Includes the NUL. */
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
