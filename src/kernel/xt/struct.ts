import { type Octets, readU16be, readU32host, u16be, u32host, zeros } from '../../base/octets.ts'
import type { NftFamily } from '../nft/state.ts'
import { compatHead } from './expressions.ts'
import { NFACCT_NAME_MAX, XT_RECENT_NAME_LEN } from './rule.ts'

/**
 * Structures of xtables as tables: the position and the encoding of each field. Numbers are in host order
 * (little-endian) unless their name says otherwise.
 */
export interface Struct<F extends Fields> {
  readonly name: string
  readonly revision: number
  /** Size in the kernel's dumps: that of the structure, rounded up to a multiple of 8 (XT_ALIGN). */
  readonly size: number
  readonly fields: F
}

export interface Fields {
  readonly [name: string]: FieldPlace
}

interface FieldPlace {
  readonly offset: number
  readonly length: number
}

interface Field<T> extends FieldPlace {
  readonly put: (value: T) => Part
  readonly get: (info: Octets) => T
}

interface Part {
  readonly offset: number
  readonly octets: Octets
}

function u8(offset: number): Field<number> {
  return {
    offset,
    length: 1,
    put: value => ({ offset, octets: String.fromCharCode(value) }),
    get: info => info.charCodeAt(offset),
  }
}

function u16(offset: number): Field<number> {
  return {
    offset,
    length: 2,
    put: value => ({ offset, octets: String.fromCharCode(value & 255, value >>> 8) }),
    get: info => info.charCodeAt(offset) | (info.charCodeAt(offset + 1) << 8),
  }
}

function u16net(offset: number): Field<number> {
  return {
    offset,
    length: 2,
    put: value => ({ offset, octets: u16be(value) }),
    get: info => readU16be(info, offset),
  }
}

function u32(offset: number): Field<number> {
  return {
    offset,
    length: 4,
    put: value => ({ offset, octets: u32host(value) }),
    get: info => readU32host(info, offset),
  }
}

function bytes(offset: number, length: number): Field<Octets> {
  return {
    offset,
    length,
    put: octets => ({ offset, octets }),
    get: info => info.slice(offset, offset + length),
  }
}

/** Assembles the whole structure, with zeros between the parts. Parts come in the order of their offsets. */
function layOut({ size }: { readonly size: number }, parts: readonly Part[]): Octets {
  let info = ''
  let at = 0
  for (const { offset, octets } of parts) {
    if (offset > at) info += NOTHING.slice(at - offset)
    info += octets
    at = offset + octets.length
  }
  return at < size ? info + NOTHING.slice(at - size) : info
}

/** Longer than any gap of a structure. */
const NOTHING = zeros(512)

/** Returns a test whether bytes have the structure's size and are zero wherever the table has no field. */
function fitter<F extends Fields>({ size, fields }: Struct<F>): (info: Octets) => boolean {
  const gaps: (readonly [from: number, to: number])[] = []
  let at = 0
  for (const { offset, length } of [...Object.values(fields), { offset: size, length: 0 }]) {
    if (offset > at) gaps.push([at, offset])
    at = offset + length
  }
  return info => info.length === size && gaps.every(([from, to]) => isZero(info, from, to))
}

export function isZero(info: Octets, from: number, to: number): boolean {
  const length = to - from
  return info.slice(from, to) === (length > NOTHING.length ? zeros(length) : NOTHING.slice(0, length))
}

/** Codec between a match or target as a value and its expression. */
export interface Codec<V> {
  readonly struct: Pick<Struct<Fields>, 'name' | 'revision'>
  readonly write: (value: V, family: NftFamily) => Octets
  /** Decodes a structure; undefined where a value cannot represent it. */
  readonly read: (info: Octets, family: NftFamily) => V | undefined
}

export interface Ways<V, F> {
  /** Returns the parts in the order of their offsets. */
  readonly write: (value: V, fields: F, family: NftFamily) => readonly Part[]
  readonly read: (info: Octets, fields: F, family: NftFamily) => V | undefined
}

export function structCodec<V, F extends Fields>(
  kind: 'match' | 'target',
  struct: Struct<F>,
  ways: Ways<V, F>,
): Codec<V> {
  const head = compatHead(kind, struct)
  const { fields } = struct
  return {
    struct,
    write: (value, family) => head + layOut(struct, ways.write(value, fields, family)),
    read: structReader(struct, ways.read).read,
  }
}

/** A decoder of a structure that kprobe does not write. */
export function structReader<V, F extends Fields>(
  struct: Struct<F>,
  read: Ways<V, F>['read'],
): Pick<Codec<V>, 'struct' | 'read'> {
  const { fields } = struct
  const fits = fitter(struct)
  return {
    struct,
    read: (info, family) => (fits(info) ? read(info, fields, family) : undefined),
  }
}

/** A structure of a match or target as it was read. */
export interface ReadStruct {
  readonly name: string
  readonly revision: number
  readonly info: Octets
}

/** Returns a decoder; it returns undefined for unknown names and revisions, and for options that the values lack. */
export function decoderOf<V>(
  codecs: readonly Pick<Codec<V>, 'struct' | 'read'>[],
): (one: ReadStruct, family: NftFamily) => V | undefined {
  const readers = new Map(codecs.map(({ struct, read }) => [`${struct.name} ${struct.revision}`, read]))
  return ({ name, revision, info }, family) => readers.get(`${name} ${revision}`)?.(info, family)
}

export function octetsOfText(text: string): Octets {
  return NON_ASCII.test(text) ? Buffer.from(text, 'utf8').toString('latin1') : text
}

/** Decodes UTF-8; undefined for invalid bytes. */
export function textOfOctets(octets: Octets): string | undefined {
  if (!NON_ASCII.test(octets)) return octets
  const text = Buffer.from(octets, 'latin1').toString('utf8')
  return octetsOfText(text) === octets ? text : undefined
}

const NON_ASCII = /[^\0-\x7f]/

/* The structures of xtables matches and targets, from the kernel's headers under linux/netfilter. Fields by offset. */

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

/** struct xt_statistic_info; the count shares its place with that of nth, and the kernel does not export its pointer. */
export const STATISTIC = struct('statistic', 0, 24, {
  mode: u16(0),
  flags: u16(2),
  probability: u32(4),
  nthCount: u32(12),
})

/** struct xt_statistic_info in mode nth: one packet of `every` + 1 matches, the first after `packet` others. */
export const STATISTIC_NTH = struct('statistic', 0, 24, {
  mode: u16(0),
  flags: u16(2),
  every: u32(4),
  packet: u32(8),
  count: u32(12),
})

/** struct xt_multiport_v1: a port with a flag begins a range that the next one ends. */
export const MULTIPORT = struct('multiport', 1, 48, {
  flags: u8(0),
  count: u8(1),
  ports: bytes(2, 30),
  pflags: bytes(32, 15),
  invert: u8(47),
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

/** struct xt_mark_mtinfo1 and xt_connmark_mtinfo1. Newer tools compare the mark with expressions of nf_tables. */
export const MARK_MATCH = struct('mark', 1, 16, { mark: u32(0), mask: u32(4), invert: u8(8) })
export const CONNMARK_MATCH = struct('connmark', 1, 16, MARK_MATCH.fields)

/** struct xt_addrtype_info_v1. */
export const ADDRTYPE = struct('addrtype', 1, 8, { source: u16(0), dest: u16(2), flags: u32(4) })

/** struct xt_udp. */
export const UDP = struct('udp', 0, 16, {
  sourceFrom: u16(0),
  sourceTo: u16(2),
  destFrom: u16(4),
  destTo: u16(6),
  invflags: u8(8),
})

/** struct xt_tcp: no options and no flags. */
export const TCP = struct('tcp', 0, 16, { ...UDP.fields, invflags: u8(11) })

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

/** struct xt_connmark_tginfo1, and its second version, which can shift. */
export const CONNMARK_V1 = struct('CONNMARK', 1, 16, {
  ctmark: u32(0),
  ctmask: u32(4),
  nfmask: u32(8),
  mode: u8(12),
})
export const CONNMARK_V2 = struct('CONNMARK', 2, 16, {
  ctmark: u32(0),
  ctmask: u32(4),
  nfmask: u32(8),
  shiftDir: u8(12),
  shiftBits: u8(13),
  mode: u8(14),
})

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

export const SNAT_MULTI = struct('SNAT', 0, 24, DNAT_MULTI.fields)
export const REDIRECT_V4 = struct('REDIRECT', 0, 24, DNAT_MULTI.fields)
export const REDIRECT_V6 = struct('REDIRECT', 0, 40, NAT_RANGE)
export const SNAT_V1 = struct('SNAT', 1, 40, NAT_RANGE)
export const SNAT_V2 = struct('SNAT', 2, 48, NAT_RANGE)
