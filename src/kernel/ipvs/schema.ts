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
import {
  IPVS_CMD_ATTR_DEST,
  IPVS_CMD_ATTR_SERVICE,
  IPVS_CMD_ATTR_TIMEOUT_TCP,
  IPVS_CMD_ATTR_TIMEOUT_TCP_FIN,
  IPVS_CMD_ATTR_TIMEOUT_UDP,
  IPVS_DEST_ATTR_ACTIVE_CONNS,
  IPVS_DEST_ATTR_ADDR,
  IPVS_DEST_ATTR_ADDR_FAMILY,
  IPVS_DEST_ATTR_FWD_METHOD,
  IPVS_DEST_ATTR_INACT_CONNS,
  IPVS_DEST_ATTR_L_THRESH,
  IPVS_DEST_ATTR_PORT,
  IPVS_DEST_ATTR_STATS,
  IPVS_DEST_ATTR_STATS64,
  IPVS_DEST_ATTR_U_THRESH,
  IPVS_DEST_ATTR_WEIGHT,
  IPVS_INFO_ATTR_CONN_TAB_SIZE,
  IPVS_INFO_ATTR_VERSION,
  IPVS_STATS_ATTR_CONNS,
  IPVS_STATS_ATTR_INBYTES,
  IPVS_STATS_ATTR_INPKTS,
  IPVS_STATS_ATTR_OUTBYTES,
  IPVS_STATS_ATTR_OUTPKTS,
  IPVS_SVC_ATTR_ADDR,
  IPVS_SVC_ATTR_AF,
  IPVS_SVC_ATTR_FLAGS,
  IPVS_SVC_ATTR_FWMARK,
  IPVS_SVC_ATTR_NETMASK,
  IPVS_SVC_ATTR_PORT,
  IPVS_SVC_ATTR_PROTOCOL,
  IPVS_SVC_ATTR_SCHED_NAME,
  IPVS_SVC_ATTR_TIMEOUT,
} from './constants.ts'

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
  connections: [IPVS_STATS_ATTR_CONNS, u64host],
  packetsIn: [IPVS_STATS_ATTR_INPKTS, u64host],
  packetsOut: [IPVS_STATS_ATTR_OUTPKTS, u64host],
  bytesIn: [IPVS_STATS_ATTR_INBYTES, u64host],
  bytesOut: [IPVS_STATS_ATTR_OUTBYTES, u64host],
})

/** IPVS_*_ATTR_STATS: counts other than bytes wrap after 32 bits. */
export const STATS = attributeSet({
  connections: [IPVS_STATS_ATTR_CONNS, u32host],
  packetsIn: [IPVS_STATS_ATTR_INPKTS, u32host],
  packetsOut: [IPVS_STATS_ATTR_OUTPKTS, u32host],
  bytesIn: [IPVS_STATS_ATTR_INBYTES, u64host],
  bytesOut: [IPVS_STATS_ATTR_OUTBYTES, u64host],
})

export const SERVICE = attributeSet({
  /** AF_*. */
  family: [IPVS_SVC_ATTR_AF, u16host],
  protocol: [IPVS_SVC_ATTR_PROTOCOL, u16host],
  address: [IPVS_SVC_ATTR_ADDR, address],
  port: [IPVS_SVC_ATTR_PORT, u16be],
  mark: [IPVS_SVC_ATTR_FWMARK, u32host],
  scheduler: [IPVS_SVC_ATTR_SCHED_NAME, string],
  flags: [IPVS_SVC_ATTR_FLAGS, flags],
  timeoutS: [IPVS_SVC_ATTR_TIMEOUT, u32host],
  /** IPv4: a mask in network order; IPv6: the length of a prefix in host order. */
  netmask: [IPVS_SVC_ATTR_NETMASK, octets],
})

export const DESTINATION = attributeSet({
  address: [IPVS_DEST_ATTR_ADDR, address],
  port: [IPVS_DEST_ATTR_PORT, u16be],
  forwarding: [IPVS_DEST_ATTR_FWD_METHOD, u32host],
  weight: [IPVS_DEST_ATTR_WEIGHT, u32host],
  connectionsMax: [IPVS_DEST_ATTR_U_THRESH, u32host],
  connectionsLow: [IPVS_DEST_ATTR_L_THRESH, u32host],
  activeConnections: [IPVS_DEST_ATTR_ACTIVE_CONNS, u32host],
  inactiveConnections: [IPVS_DEST_ATTR_INACT_CONNS, u32host],
  /** Kept as bytes: they matter only where STATS64 is missing. */
  stats: [IPVS_DEST_ATTR_STATS, nestedOctets],
  /** AF_*, since Linux 3.18. */
  family: [IPVS_DEST_ATTR_ADDR_FAMILY, u16host],
  stats64: [IPVS_DEST_ATTR_STATS64, nested(STATS64)],
})

/** The first-level attributes of a command. */
export const COMMAND = attributeSet({
  service: [IPVS_CMD_ATTR_SERVICE, nested(SERVICE)],
  destination: [IPVS_CMD_ATTR_DEST, nested(DESTINATION)],
  tcpS: [IPVS_CMD_ATTR_TIMEOUT_TCP, u32host],
  tcpFinS: [IPVS_CMD_ATTR_TIMEOUT_TCP_FIN, u32host],
  udpS: [IPVS_CMD_ATTR_TIMEOUT_UDP, u32host],
})

/** The first-level attributes of IPVS_CMD_SET_INFO, the answer to IPVS_CMD_GET_INFO. */
export const INFO = attributeSet({
  version: [IPVS_INFO_ATTR_VERSION, u32host],
  connectionTableSize: [IPVS_INFO_ATTR_CONN_TAB_SIZE, u32host],
})
