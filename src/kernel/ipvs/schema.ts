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
import * as ipvs from './constants.ts'

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
  connections: [ipvs.IPVS_STATS_ATTR_CONNS, u64host],
  packetsIn: [ipvs.IPVS_STATS_ATTR_INPKTS, u64host],
  packetsOut: [ipvs.IPVS_STATS_ATTR_OUTPKTS, u64host],
  bytesIn: [ipvs.IPVS_STATS_ATTR_INBYTES, u64host],
  bytesOut: [ipvs.IPVS_STATS_ATTR_OUTBYTES, u64host],
})

/** IPVS_*_ATTR_STATS: counts other than bytes wrap after 32 bits. */
export const STATS = attributeSet({
  connections: [ipvs.IPVS_STATS_ATTR_CONNS, u32host],
  packetsIn: [ipvs.IPVS_STATS_ATTR_INPKTS, u32host],
  packetsOut: [ipvs.IPVS_STATS_ATTR_OUTPKTS, u32host],
  bytesIn: [ipvs.IPVS_STATS_ATTR_INBYTES, u64host],
  bytesOut: [ipvs.IPVS_STATS_ATTR_OUTBYTES, u64host],
})

export const SERVICE = attributeSet({
  /** AF_*. */
  family: [ipvs.IPVS_SVC_ATTR_AF, u16host],
  protocol: [ipvs.IPVS_SVC_ATTR_PROTOCOL, u16host],
  address: [ipvs.IPVS_SVC_ATTR_ADDR, address],
  port: [ipvs.IPVS_SVC_ATTR_PORT, u16be],
  mark: [ipvs.IPVS_SVC_ATTR_FWMARK, u32host],
  scheduler: [ipvs.IPVS_SVC_ATTR_SCHED_NAME, string],
  flags: [ipvs.IPVS_SVC_ATTR_FLAGS, flags],
  timeoutS: [ipvs.IPVS_SVC_ATTR_TIMEOUT, u32host],
  /** IPv4: a mask in network order; IPv6: the length of a prefix in host order. */
  netmask: [ipvs.IPVS_SVC_ATTR_NETMASK, octets],
})

export const DESTINATION = attributeSet({
  address: [ipvs.IPVS_DEST_ATTR_ADDR, address],
  port: [ipvs.IPVS_DEST_ATTR_PORT, u16be],
  forwarding: [ipvs.IPVS_DEST_ATTR_FWD_METHOD, u32host],
  weight: [ipvs.IPVS_DEST_ATTR_WEIGHT, u32host],
  connectionsMax: [ipvs.IPVS_DEST_ATTR_U_THRESH, u32host],
  connectionsLow: [ipvs.IPVS_DEST_ATTR_L_THRESH, u32host],
  activeConnections: [ipvs.IPVS_DEST_ATTR_ACTIVE_CONNS, u32host],
  inactiveConnections: [ipvs.IPVS_DEST_ATTR_INACT_CONNS, u32host],
  /** Kept as bytes: they matter only where STATS64 is missing. */
  stats: [ipvs.IPVS_DEST_ATTR_STATS, nestedOctets],
  /** AF_*, since Linux 3.18. */
  family: [ipvs.IPVS_DEST_ATTR_ADDR_FAMILY, u16host],
  stats64: [ipvs.IPVS_DEST_ATTR_STATS64, nested(STATS64)],
})

/** The first-level attributes of a command. */
export const COMMAND = attributeSet({
  service: [ipvs.IPVS_CMD_ATTR_SERVICE, nested(SERVICE)],
  destination: [ipvs.IPVS_CMD_ATTR_DEST, nested(DESTINATION)],
  tcpS: [ipvs.IPVS_CMD_ATTR_TIMEOUT_TCP, u32host],
  tcpFinS: [ipvs.IPVS_CMD_ATTR_TIMEOUT_TCP_FIN, u32host],
  udpS: [ipvs.IPVS_CMD_ATTR_TIMEOUT_UDP, u32host],
})

/** The first-level attributes of IPVS_CMD_SET_INFO, the answer to IPVS_CMD_GET_INFO. */
export const INFO = attributeSet({
  version: [ipvs.IPVS_INFO_ATTR_VERSION, u32host],
  connectionTableSize: [ipvs.IPVS_INFO_ATTR_CONN_TAB_SIZE, u32host],
})
