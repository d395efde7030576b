import {
  XT_CONNTRACK_STATE_DNAT,
  XT_CONNTRACK_STATE_ESTABLISHED,
  XT_CONNTRACK_STATE_INVALID,
  XT_CONNTRACK_STATE_NEW,
  XT_CONNTRACK_STATE_RELATED,
  XT_CONNTRACK_STATE_SNAT,
  XT_CONNTRACK_STATE_UNTRACKED,
} from './constants.ts'

/** iptables' words for numbers. */

/** The protocols of /etc/protocols, and those that iptables knows without it. */
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
