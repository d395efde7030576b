import { nestedOctets, octets, u8, u16be, u32be, u32host, u64be } from '../../netlink/attribute.ts'
import { attributeSet, nested } from '../../netlink/schema.ts'
import {
  CTA_COUNTERS_BYTES,
  CTA_COUNTERS_ORIG,
  CTA_COUNTERS_PACKETS,
  CTA_COUNTERS_REPLY,
  CTA_FILTER,
  CTA_FILTER_ORIG_FLAGS,
  CTA_ID,
  CTA_IP_V4_DST,
  CTA_IP_V4_SRC,
  CTA_IP_V6_DST,
  CTA_IP_V6_SRC,
  CTA_MARK,
  CTA_PROTO_DST_PORT,
  CTA_PROTO_NUM,
  CTA_PROTO_SRC_PORT,
  CTA_STATS_DROP,
  CTA_STATS_EARLY_DROP,
  CTA_STATS_GLOBAL_ENTRIES,
  CTA_STATS_GLOBAL_MAX_ENTRIES,
  CTA_STATS_INSERT_FAILED,
  CTA_STATUS,
  CTA_STATUS_MASK,
  CTA_TIMEOUT,
  CTA_TIMESTAMP,
  CTA_TIMESTAMP_START,
  CTA_TIMESTAMP_STOP,
  CTA_TUPLE_IP,
  CTA_TUPLE_ORIG,
  CTA_TUPLE_PROTO,
  CTA_TUPLE_REPLY,
  CTA_TUPLE_ZONE,
  CTA_ZONE,
} from './constants.ts'

/** The ctnetlink attributes that kprobe uses, as linux/netfilter/nfnetlink_conntrack.h describes them. */

const TUPLE_IP = attributeSet({
  v4Source: [CTA_IP_V4_SRC, octets],
  v4Destination: [CTA_IP_V4_DST, octets],
  v6Source: [CTA_IP_V6_SRC, octets],
  v6Destination: [CTA_IP_V6_DST, octets],
})

const TUPLE_PROTO = attributeSet({
  number: [CTA_PROTO_NUM, u8],
  sourcePort: [CTA_PROTO_SRC_PORT, u16be],
  destinationPort: [CTA_PROTO_DST_PORT, u16be],
})

export const TUPLE = attributeSet({
  ip: [CTA_TUPLE_IP, nested(TUPLE_IP)],
  proto: [CTA_TUPLE_PROTO, nested(TUPLE_PROTO)],
  zone: [CTA_TUPLE_ZONE, u16be],
})

/** The parts of the original tuple that a dump compares. */
const FILTER = attributeSet({ originalFlags: [CTA_FILTER_ORIG_FLAGS, u32host] })

/** The attributes that kprobe writes: entries to create, and the filters of dumps. */
export const CONNTRACK = attributeSet({
  original: [CTA_TUPLE_ORIG, nested(TUPLE)],
  reply: [CTA_TUPLE_REPLY, nested(TUPLE)],
  status: [CTA_STATUS, u32be],
  statusMask: [CTA_STATUS_MASK, u32be],
  timeoutS: [CTA_TIMEOUT, u32be],
  mark: [CTA_MARK, u32be],
  zone: [CTA_ZONE, u16be],
  filter: [CTA_FILTER, nested(FILTER)],
})

/* A dump has hundreds of thousands of entries, so fields without a use are not decoded. The first table decides
   whether an entry is wanted; the second has the fields of wanted entries. */

const HEAD_IP = attributeSet({
  v4Destination: [CTA_IP_V4_DST, octets],
  v6Destination: [CTA_IP_V6_DST, octets],
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
  v6Source: [CTA_IP_V6_SRC, octets],
})

const SOURCE_TUPLE = attributeSet({
  ip: [CTA_TUPLE_IP, nested(SOURCE_IP)],
  proto: [CTA_TUPLE_PROTO, nested(attributeSet({ sourcePort: [CTA_PROTO_SRC_PORT, u16be] }))],
})

/** The remaining fields of an entry. A deletion uses them too: it returns the original tuple unchanged. */
export const REST = attributeSet({
  tuple: [CTA_TUPLE_ORIG, nestedOctets],
  reply: [CTA_TUPLE_REPLY, nested(SOURCE_TUPLE)],
  status: [CTA_STATUS, u32be],
  id: [CTA_ID, u32be],
  zone: [CTA_ZONE, u16be],
})

const COUNTERS = attributeSet({
  packets: [CTA_COUNTERS_PACKETS, u64be],
  bytes: [CTA_COUNTERS_BYTES, u64be],
})

/** The fields of an entry for people: both tuples, and what the kernel counted and timed where its settings are on. */
export const RECORD = attributeSet({
  original: [CTA_TUPLE_ORIG, nested(TUPLE)],
  reply: [CTA_TUPLE_REPLY, nested(TUPLE)],
  sent: [CTA_COUNTERS_ORIG, nested(COUNTERS)],
  received: [CTA_COUNTERS_REPLY, nested(COUNTERS)],
  time: [
    CTA_TIMESTAMP,
    nested(attributeSet({ startNs: [CTA_TIMESTAMP_START, u64be], stopNs: [CTA_TIMESTAMP_STOP, u64be] })),
  ],
})

/** Attributes of IPCTNL_MSG_CT_GET_STATS. */
export const STATS_GLOBAL = attributeSet({
  entries: [CTA_STATS_GLOBAL_ENTRIES, u32be],
  entriesMax: [CTA_STATS_GLOBAL_MAX_ENTRIES, u32be],
})

/** Attributes of IPCTNL_MSG_CT_GET_STATS_CPU: one message per processor. */
export const STATS_CPU = attributeSet({
  insertFailed: [CTA_STATS_INSERT_FAILED, u32be],
  drop: [CTA_STATS_DROP, u32be],
  earlyDrop: [CTA_STATS_EARLY_DROP, u32be],
})
