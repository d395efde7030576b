import { NFACCT_NAME_MAX, XT_RECENT_NAME_LEN } from './constants.ts'
import { bytes, type Fields, type Struct, u8, u16, u16net, u32 } from './struct.ts'

/** The structures of xtables matches and targets, from the kernel's headers under linux/netfilter. Fields by offset. */

function struct<F extends Fields>(name: string, revision: number, size: number, fields: F): Struct<F> {
  return { name, revision, size, fields }
}

/** struct xt_comment_info. */
export const COMMENT = struct('comment', 0, 256, { comment: bytes(0, 256) })

/** struct xt_conntrack_mtinfo3: only the state is compared. */
export const CONNTRACK = struct('conntrack', 3, 168, {
  matchFlags: u16(146),
  invertFlags: u16(148),
  stateMask: u16(150),
})

/**
 * struct xt_statistic_info; the count shares its place with that of nth, and the kernel does not export its pointer.
 */
export const STATISTIC = struct('statistic', 0, 24, {
  mode: u16(0),
  flags: u16(2),
  probability: u32(4),
  nthCount: u32(12),
})

/** struct xt_recent_mtinfo_v1. */
export const RECENT = struct('recent', 1, 232, {
  seconds: u32(0),
  hitCount: u32(4),
  checkSet: u8(8),
  invert: u8(9),
  name: bytes(10, XT_RECENT_NAME_LEN),
  side: u8(210),
  mask: bytes(212, 16),
})

/** struct xt_mark_mtinfo1. Newer tools compare the mark with expressions of nf_tables. */
export const MARK_MATCH = struct('mark', 1, 16, { mark: u32(0), mask: u32(4), invert: u8(8) })

/** struct xt_addrtype_info_v1. */
export const ADDRTYPE = struct('addrtype', 1, 8, { source: u16(0), dest: u16(2), flags: u32(4) })

/** struct xt_tcp: no options and no flags. */
export const TCP = struct('tcp', 0, 16, {
  sourceFrom: u16(0),
  sourceTo: u16(2),
  destFrom: u16(4),
  destTo: u16(6),
  invflags: u8(11),
})

/** struct xt_udp. */
export const UDP = struct('udp', 0, 16, {
  sourceFrom: u16(0),
  sourceTo: u16(2),
  destFrom: u16(4),
  destTo: u16(6),
  invflags: u8(8),
})

/** struct xt_sctp_info: no chunks; a chunk type of 255 in `flagInfo` marks an unused entry. */
export const SCTP = struct('sctp', 0, 296, {
  destFrom: u16(0),
  destTo: u16(2),
  sourceFrom: u16(4),
  sourceTo: u16(6),
  flagInfo: bytes(268, 12),
  flags: u32(284),
  invflags: u32(288),
})

/** struct xt_nfacct_match_info and xt_nfacct_match_info_v1; the kernel does not export their pointers. */
export const NFACCT = struct('nfacct', 0, 40, { name: bytes(0, NFACCT_NAME_MAX) })
export const NFACCT_V1 = struct('nfacct', 1, 40, { name: bytes(0, NFACCT_NAME_MAX) })

/** struct xt_physdev_info, without names of devices. */
export const PHYSDEV = struct('physdev', 0, 72, { invert: u8(64), bitmask: u8(65) })

/** struct xt_ipvs_mtinfo. */
export const IPVS = struct('ipvs', 0, 40, {
  vaddr: bytes(0, 16),
  vmask: bytes(16, 16),
  vport: u16net(32),
  l4proto: u8(34),
  invert: u8(38),
  bitmask: u8(39),
})

/** struct ipt_reject_info, struct ip6t_reject_info. */
export const REJECT = struct('REJECT', 0, 8, { with: u32(0) })

/** struct xt_mark_tginfo2. */
export const MARK = struct('MARK', 2, 8, { mark: u32(0), mask: u32(4) })

/** struct nf_nat_ipv4_multi_range_compat of one range. */
export const MASQUERADE_V4 = struct('MASQUERADE', 0, 24, { rangesize: u32(0), flags: u32(4) })
export const DNAT_MULTI = struct('DNAT', 0, 24, {
  rangesize: u32(0),
  flags: u32(4),
  minAddr: bytes(8, 4),
  maxAddr: bytes(12, 4),
  minPort: u16net(16),
  maxPort: u16net(18),
})

/** struct nf_nat_range. */
export const MASQUERADE_V6 = struct('MASQUERADE', 0, 40, { flags: u32(0) })
const NAT_RANGE = {
  flags: u32(0),
  minAddr: bytes(4, 16),
  maxAddr: bytes(20, 16),
  minPort: u16net(36),
  maxPort: u16net(38),
} as const
export const DNAT_V1 = struct('DNAT', 1, 40, NAT_RANGE)

/** struct nf_nat_range2, without its base port. */
export const DNAT = struct('DNAT', 2, 48, NAT_RANGE)
