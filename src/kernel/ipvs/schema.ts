import { readU32host } from '../../base/octets.ts'
import {
  type Codec,
  nestedOctets,
  octets,
  paddedOctets,
  string,
  u16be,
  u16host,
  u32host,
  u64host,
} from '../../netlink/attribute.ts'
import { malformed } from '../../netlink/errors.ts'
import { attributeSet, nested } from '../../netlink/schema.ts'

/** linux/ip_vs.h, linux/in.h and linux/socket.h, under the headers' own names. */

export const IPVS_GENL_VERSION = 1

export const AF_INET = 2
export const AF_INET6 = 10

export const IPPROTO_TCP = 6
export const IPPROTO_UDP = 17
export const IPPROTO_SCTP = 132

export const IPVS_CMD_NEW_SERVICE = 1
export const IPVS_CMD_SET_SERVICE = 2
export const IPVS_CMD_DEL_SERVICE = 3
export const IPVS_CMD_GET_SERVICE = 4
export const IPVS_CMD_NEW_DEST = 5
export const IPVS_CMD_SET_DEST = 6
export const IPVS_CMD_DEL_DEST = 7
export const IPVS_CMD_GET_DEST = 8
export const IPVS_CMD_SET_CONFIG = 12
export const IPVS_CMD_GET_CONFIG = 13
export const IPVS_CMD_SET_INFO = 14
export const IPVS_CMD_GET_INFO = 15

/** A client keeps its real server until the timeout expires. */
export const IP_VS_SVC_F_PERSISTENT = 0x01
export const IP_VS_SVC_F_HASHED = 0x02
/** Each datagram is a connection by itself. */
export const IP_VS_SVC_F_ONEPACKET = 0x04
/** The scheduler defines the meaning of these three. */
export const IP_VS_SVC_F_SCHED1 = 0x08
export const IP_VS_SVC_F_SCHED2 = 0x10
export const IP_VS_SVC_F_SCHED3 = 0x20

export const IP_VS_CONN_F_FWD_MASK = 0x07
export const IP_VS_CONN_F_MASQ = 0x00
export const IP_VS_CONN_F_LOCALNODE = 0x01
export const IP_VS_CONN_F_TUNNEL = 0x02
export const IP_VS_CONN_F_DROUTE = 0x03
export const IP_VS_CONN_F_BYPASS = 0x04

/** The length in struct ip_vs_scheduler, including the NUL. */
export const IP_VS_SCHEDNAME_MAXLEN = 16

/** The IPVS attributes that kprobe uses: linux/ip_vs.h, and the policies in net/netfilter/ipvs/ip_vs_ctl.c. */

/** union nf_inet_addr: 16 bytes; IPv4 uses the first four. */
const address = paddedOctets(16)

const ALL_FLAGS = 0xffff_ffff

/** struct ip_vs_flags: flags, and a mask of the valid ones. */
const flags: Codec<number> = {
  write(out, type, value) {
    out.open(type)
    out.out.u32(value)
    out.out.u32(ALL_FLAGS)
    out.close()
  },
  read(view, start, end, depth) {
    const both = octets.read(view, start, end, depth)
    if (both.length !== 8) throw malformed(`flags of ${both.length} bytes`, start)
    return readU32host(both)
  },
}

/** IPVS_*_ATTR_STATS64 (Linux 4.1). */
export const STATS64 = attributeSet({
  connections: [1, u64host],
  packetsIn: [2, u64host],
  packetsOut: [3, u64host],
  bytesIn: [4, u64host],
  bytesOut: [5, u64host],
})

/** IPVS_*_ATTR_STATS: counts other than bytes wrap after 32 bits. */
export const STATS = attributeSet({
  connections: [1, u32host],
  packetsIn: [2, u32host],
  packetsOut: [3, u32host],
  bytesIn: [4, u64host],
  bytesOut: [5, u64host],
})

export const SERVICE = attributeSet({
  /** AF_*. */
  family: [1, u16host],
  protocol: [2, u16host],
  address: [3, address],
  port: [4, u16be],
  mark: [5, u32host],
  scheduler: [6, string],
  flags: [7, flags],
  timeoutS: [8, u32host],
  /** IPv4: a mask in network order; IPv6: the length of a prefix in host order. */
  netmask: [9, octets],
})

export const DESTINATION = attributeSet({
  address: [1, address],
  port: [2, u16be],
  forwarding: [3, u32host],
  weight: [4, u32host],
  connectionsMax: [5, u32host],
  connectionsLow: [6, u32host],
  activeConnections: [7, u32host],
  inactiveConnections: [8, u32host],
  /** Kept as bytes: they matter only where STATS64 is missing. */
  stats: [10, nestedOctets],
  /** AF_*, since Linux 3.18. */
  family: [11, u16host],
  stats64: [12, nested(STATS64)],
})

/** The first-level attributes of a command. */
export const COMMAND = attributeSet({
  service: [1, nested(SERVICE)],
  destination: [2, nested(DESTINATION)],
  tcpS: [4, u32host],
  tcpFinS: [5, u32host],
  udpS: [6, u32host],
})

/** The first-level attributes of IPVS_CMD_SET_INFO, the answer to IPVS_CMD_GET_INFO. */
export const INFO = attributeSet({
  version: [1, u32host],
  connectionTableSize: [2, u32host],
})
