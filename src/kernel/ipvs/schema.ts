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
