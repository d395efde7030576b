import { nestedOctets, octets, u8, u16be, u32be, u32host, u64be } from '../../netlink/attribute.ts'
import { attributeSet, nested } from '../../netlink/schema.ts'

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

/** The ctnetlink attributes that kprobe uses, as linux/netfilter/nfnetlink_conntrack.h describes them. */

const TUPLE_IP = attributeSet({
  v4Source: [CTA_IP_V4_SRC, octets],
  v4Destination: [CTA_IP_V4_DST, octets],
  v6Source: [3, octets],
  v6Destination: [4, octets],
})

const TUPLE_PROTO = attributeSet({
  number: [CTA_PROTO_NUM, u8],
  sourcePort: [CTA_PROTO_SRC_PORT, u16be],
  destinationPort: [CTA_PROTO_DST_PORT, u16be],
})

export const TUPLE = attributeSet({
  ip: [CTA_TUPLE_IP, nested(TUPLE_IP)],
  proto: [CTA_TUPLE_PROTO, nested(TUPLE_PROTO)],
  zone: [3, u16be],
})

/** The parts of the original tuple that a dump compares. */
const FILTER = attributeSet({ originalFlags: [1, u32host] })

/** The attributes that kprobe writes: entries to create, and the filters of dumps. */
export const CONNTRACK = attributeSet({
  original: [CTA_TUPLE_ORIG, nested(TUPLE)],
  reply: [CTA_TUPLE_REPLY, nested(TUPLE)],
  status: [3, u32be],
  statusMask: [26, u32be],
  timeoutS: [7, u32be],
  mark: [8, u32be],
  zone: [18, u16be],
  filter: [25, nested(FILTER)],
})

/* A dump has hundreds of thousands of entries, so fields without a use are not decoded. The first table decides
   whether an entry is wanted; the second has the fields of wanted entries. */

const HEAD_IP = attributeSet({
  v4Destination: [CTA_IP_V4_DST, octets],
  v6Destination: [4, octets],
})

const HEAD_PROTO = attributeSet({
  number: [CTA_PROTO_NUM, u8],
  destinationPort: [CTA_PROTO_DST_PORT, u16be],
})

const HEAD_TUPLE = attributeSet({
  ip: [CTA_TUPLE_IP, nested(HEAD_IP)],
  proto: [CTA_TUPLE_PROTO, nested(HEAD_PROTO)],
})

export const HEAD = attributeSet({ original: [CTA_TUPLE_ORIG, nested(HEAD_TUPLE)] })

const SOURCE_IP = attributeSet({
  v4Source: [CTA_IP_V4_SRC, octets],
  v6Source: [3, octets],
})

const SOURCE_TUPLE = attributeSet({
  ip: [CTA_TUPLE_IP, nested(SOURCE_IP)],
  proto: [CTA_TUPLE_PROTO, nested(attributeSet({ sourcePort: [CTA_PROTO_SRC_PORT, u16be] }))],
})

/** The remaining fields of an entry. A deletion uses them too: it returns the original tuple unchanged. */
export const REST = attributeSet({
  tuple: [CTA_TUPLE_ORIG, nestedOctets],
  reply: [CTA_TUPLE_REPLY, nested(SOURCE_TUPLE)],
  status: [3, u32be],
  id: [12, u32be],
  zone: [18, u16be],
})

const COUNTERS = attributeSet({
  packets: [1, u64be],
  bytes: [2, u64be],
})

/** The fields of an entry for people: both tuples, and what the kernel counted and timed where its settings are on. */
export const RECORD = attributeSet({
  original: [CTA_TUPLE_ORIG, nested(TUPLE)],
  reply: [CTA_TUPLE_REPLY, nested(TUPLE)],
  sent: [9, nested(COUNTERS)],
  received: [10, nested(COUNTERS)],
  time: [20, nested(attributeSet({ startNs: [1, u64be], stopNs: [2, u64be] }))],
})

/** Attributes of IPCTNL_MSG_CT_GET_STATS. */
export const STATS_GLOBAL = attributeSet({
  entries: [1, u32be],
  entriesMax: [2, u32be],
})

/** Attributes of IPCTNL_MSG_CT_GET_STATS_CPU: one message per processor. */
export const STATS_CPU = attributeSet({
  insertFailed: [9, u32be],
  drop: [10, u32be],
  earlyDrop: [11, u32be],
})
