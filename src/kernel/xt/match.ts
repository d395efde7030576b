import { cString, type Octets } from '../../base/octets.ts'
import { unencodable } from '../../netlink/errors.ts'
import { EXPRESSIONS } from '../nft/schema.ts'
import type { NftFamily } from '../nft/state.ts'
import { attributesOf, limit, type RawExpression, rawExpression } from './expressions.ts'
import * as xt from './rule.ts'
import { ADDRESS_TYPES, STATES, type XtMatch, type XtPorts } from './rule.ts'
import * as structs from './struct.ts'
import {
  type Codec,
  decoderOf,
  type Fields,
  isZero,
  octetsOfText,
  type Struct,
  structCodec,
  textOfOctets,
  type Ways,
} from './struct.ts'

export type MatchOf<K extends XtMatch['kind']> = XtMatch & { readonly kind: K }

function codec<K extends XtMatch['kind'], F extends Fields>(
  _: K,
  struct: Struct<F>,
  ways: Ways<MatchOf<K>, F>,
): Codec<MatchOf<K>> {
  return structCodec('match', struct, ways)
}

export const COMMENT = codec('comment', structs.COMMENT, {
  write({ text }, { comment }) {
    const octets = octetsOfText(text)
    if (octets.length > xt.XT_COMMENT_LENGTH_MAX)
      throw unencodable(`a comment of ${octets.length} bytes is longer than ${xt.XT_COMMENT_LENGTH_MAX}`)
    return [comment.put(withoutNul(octets))]
  },
  read(info) {
    const text = padded(info, 0, info.length)
    return text === undefined ? undefined : { kind: 'comment', text }
  },
})

const ALL_STATES = STATES.reduce((all, [bit]) => all | bit, 0)

export const CONNTRACK = codec('conntrack', structs.CONNTRACK, {
  write: ({ states, inverted }, { matchFlags, invertFlags, stateMask }) => [
    matchFlags.put(xt.XT_CONNTRACK_STATE),
    invertFlags.put(inverted ? xt.XT_CONNTRACK_STATE : 0),
    stateMask.put(states),
  ],
  read(info, { matchFlags, invertFlags, stateMask }) {
    const [inverted, states] = [invertFlags.get(info), stateMask.get(info)]
    if (matchFlags.get(info) !== xt.XT_CONNTRACK_STATE || inverted > xt.XT_CONNTRACK_STATE) return undefined
    // Rules are compared as values, so an unknown bit makes it a different rule.
    return (states & ~ALL_STATES) === 0 ? { kind: 'conntrack', states, inverted: inverted !== 0 } : undefined
  },
})

/** The kernel's own count overlays the copy of the probability in union `u`; the kernel dumps the bytes it was given. */
export const STATISTIC = codec('statistic', structs.STATISTIC, {
  write: ({ probability }, fields) => [fields.probability.put(probability), fields.nthCount.put(probability)],
  read(info, fields) {
    const random = fields.mode.get(info) === xt.XT_STATISTIC_MODE_RANDOM && fields.flags.get(info) === 0
    return random ? { kind: 'statistic', probability: fields.probability.get(info) } : undefined
  },
})

const RECENT_MODES = { set: xt.XT_RECENT_SET, rcheck: xt.XT_RECENT_CHECK } as const
const ALL_BITS = '\xff'.repeat(16)
/** iptables starts with this name and overwrites it with the given one. */
const RECENT_DEFAULT_NAME = 'DEFAULT'

export const RECENT = codec('recent', structs.RECENT, {
  write({ mode, name, seconds, reap }, fields) {
    const octets = octetsOfText(name)
    if (octets.length === 0 || octets.length >= xt.XT_RECENT_NAME_LEN)
      throw unencodable(`a name of ${octets.length} bytes for recent`)
    return [
      fields.seconds.put(seconds),
      fields.checkSet.put(RECENT_MODES[mode] | (reap ? xt.XT_RECENT_REAP : 0)),
      fields.name.put(`${withoutNul(octets)}\0${RECENT_DEFAULT_NAME.slice(octets.length + 1)}`),
      fields.side.put(xt.XT_RECENT_SOURCE),
      fields.mask.put(ALL_BITS),
    ]
  },
  read(info, fields, family) {
    const flags = fields.checkSet.get(info)
    const reap = (flags & xt.XT_RECENT_REAP) !== 0
    const operation = flags & ~xt.XT_RECENT_REAP
    const mode =
      operation === RECENT_MODES.set ? 'set' : operation === RECENT_MODES.rcheck ? 'rcheck' : undefined
    const name = textOfOctets(cString(fields.name.get(info)))
    const other =
      fields.hitCount.get(info) !== 0 ||
      fields.invert.get(info) !== 0 ||
      fields.side.get(info) !== xt.XT_RECENT_SOURCE ||
      !isWholeMask(fields.mask.get(info), family)
    if (mode === undefined || name === undefined || name === '' || other) return undefined
    return { kind: 'recent', mode, name, seconds: fields.seconds.get(info), reap }
  },
})

/** Compares only the first four bytes for IPv4, because iptables writes only those of a given mask. */
function isWholeMask(mask: Octets, family: NftFamily): boolean {
  return mask === ALL_BITS || (family === 'ip' && mask.startsWith('\xff\xff\xff\xff') && isZero(mask, 4, 16))
}

/** The form of tools that did not use nf_tables expressions for marks. */
const OLD_MARK = codec('mark', structs.MARK_MATCH, {
  write: ({ mark, mask, inverted }, fields) => [
    fields.mark.put(mark),
    fields.mask.put(mask),
    fields.invert.put(inverted ? 1 : 0),
  ],
  read: (info, fields) => readMark('mark', info, fields),
})

/** Reads the structures of `mark` and `connmark`, which have the same fields. */
export function readMark<K>(kind: K, info: Octets, fields: typeof structs.MARK_MATCH.fields) {
  const inverted = fields.invert.get(info)
  if (inverted > 1) return undefined
  return { kind, mark: fields.mark.get(info), mask: fields.mask.get(info), inverted: inverted === 1 }
}

export const ADDRTYPE = codec('addrtype', structs.ADDRTYPE, {
  write({ sourceTypes, destinationTypes, sourceInverted, destinationInverted }, { source, dest, flags }) {
    const inverted =
      (sourceInverted ? xt.XT_ADDRTYPE_INVERT_SOURCE : 0) |
      (destinationInverted ? xt.XT_ADDRTYPE_INVERT_DEST : 0)
    return [source.put(sourceTypes), dest.put(destinationTypes), flags.put(inverted)]
  },
  read(info, { source, dest, flags }) {
    const bits = flags.get(info)
    if (bits > (xt.XT_ADDRTYPE_INVERT_SOURCE | xt.XT_ADDRTYPE_INVERT_DEST)) return undefined
    const [sourceTypes, destinationTypes] = [source.get(info), dest.get(info)]
    if ((sourceTypes | destinationTypes) >>> ADDRESS_TYPES.length !== 0) return undefined
    return {
      kind: 'addrtype',
      sourceTypes,
      destinationTypes,
      ...((bits & xt.XT_ADDRTYPE_INVERT_SOURCE) === 0 ? {} : { sourceInverted: true }),
      ...((bits & xt.XT_ADDRTYPE_INVERT_DEST) === 0 ? {} : { destinationInverted: true }),
    }
  },
})

const ALL_PORTS: XtPorts = { from: 0, to: 0xffff, inverted: false }

/** Returns the ports if they restrict a packet; undefined otherwise. */
export function askedPorts(ports: XtPorts | undefined): XtPorts | undefined {
  return ports?.from === 0 && ports.to === 0xffff && !ports.inverted ? undefined : ports
}

interface PortMatch<K> {
  readonly kind: K
  readonly sourcePorts?: XtPorts
  readonly destinationPorts?: XtPorts
}

export function portsMatch<K extends 'tcp' | 'udp' | 'sctp'>(
  kind: K,
  { source, destination }: { readonly [K in 'source' | 'destination']?: XtPorts | undefined },
): PortMatch<K> {
  return {
    kind,
    ...(source === undefined ? {} : { sourcePorts: source }),
    ...(destination === undefined ? {} : { destinationPorts: destination }),
  }
}

export const TCP = codec('tcp', structs.TCP, portsWays('tcp'))
export const UDP = codec('udp', structs.UDP, portsWays('udp'))

function portsWays<K extends 'tcp' | 'udp'>(kind: K): Ways<PortMatch<K>, typeof structs.TCP.fields> {
  return {
    write({ sourcePorts = ALL_PORTS, destinationPorts = ALL_PORTS }, fields) {
      const inverted =
        (sourcePorts.inverted ? xt.XT_TCP_INV_SRCPT : 0) |
        (destinationPorts.inverted ? xt.XT_TCP_INV_DSTPT : 0)
      return [
        fields.sourceFrom.put(sourcePorts.from),
        fields.sourceTo.put(sourcePorts.to),
        fields.destFrom.put(destinationPorts.from),
        fields.destTo.put(destinationPorts.to),
        fields.invflags.put(inverted),
      ]
    },
    read(info, fields) {
      const flags = fields.invflags.get(info)
      if (flags > (xt.XT_TCP_INV_SRCPT | xt.XT_TCP_INV_DSTPT)) return undefined
      const ports = (from: number, to: number, flag: number) =>
        askedPorts({ from, to, inverted: (flags & flag) !== 0 })
      return portsMatch(kind, {
        source: ports(fields.sourceFrom.get(info), fields.sourceTo.get(info), xt.XT_TCP_INV_SRCPT),
        destination: ports(fields.destFrom.get(info), fields.destTo.get(info), xt.XT_TCP_INV_DSTPT),
      })
    },
  }
}

/** Flags of unused chunks: four times a chunk type of 255. */
const NO_CHUNK_FLAGS = '\xff\0\0'.repeat(4)

export const SCTP = codec('sctp', structs.SCTP, {
  write({ sourcePorts: source, destinationPorts: destination }, fields) {
    const flags =
      (source === undefined ? 0 : xt.XT_SCTP_SRC_PORTS) |
      (destination === undefined ? 0 : xt.XT_SCTP_DEST_PORTS)
    const inverted =
      (source?.inverted ? xt.XT_SCTP_SRC_PORTS : 0) | (destination?.inverted ? xt.XT_SCTP_DEST_PORTS : 0)
    return [
      fields.destFrom.put(destination?.from ?? 0),
      fields.destTo.put(destination?.to ?? 0),
      fields.sourceFrom.put(source?.from ?? 0),
      fields.sourceTo.put(source?.to ?? 0),
      fields.flagInfo.put(NO_CHUNK_FLAGS),
      fields.flags.put(flags),
      fields.invflags.put(inverted),
    ]
  },
  read(info, fields) {
    const [flags, inverted] = [fields.flags.get(info), fields.invflags.get(info)]
    const known = xt.XT_SCTP_SRC_PORTS | xt.XT_SCTP_DEST_PORTS
    if ((flags & ~known) !== 0 || (inverted & ~flags) !== 0) return undefined
    if (fields.flagInfo.get(info) !== NO_CHUNK_FLAGS) return undefined
    const ports = (from: number, to: number, flag: number): XtPorts | undefined =>
      (flags & flag) === 0 ? undefined : { from, to, inverted: (inverted & flag) !== 0 }
    return portsMatch('sctp', {
      source: ports(fields.sourceFrom.get(info), fields.sourceTo.get(info), xt.XT_SCTP_SRC_PORTS),
      destination: ports(fields.destFrom.get(info), fields.destTo.get(info), xt.XT_SCTP_DEST_PORTS),
    })
  },
})

const NFACCT_WAYS: Ways<MatchOf<'nfacct'>, typeof structs.NFACCT.fields> = {
  write(match, { name }) {
    const octets = octetsOfText(match.name)
    if (octets.length === 0 || octets.length >= xt.NFACCT_NAME_MAX)
      throw unencodable(`a counter of nfacct with a name of ${octets.length} bytes`)
    return [name.put(withoutNul(octets))]
  },
  read(info) {
    const name = padded(info, 0, xt.NFACCT_NAME_MAX)
    return name === undefined || name === '' ? undefined : { kind: 'nfacct', name }
  },
}
const OLD_NFACCT = codec('nfacct', structs.NFACCT, NFACCT_WAYS)
export const NFACCT = codec('nfacct', structs.NFACCT_V1, NFACCT_WAYS)

export const PHYSDEV = codec('physdev-is-in', structs.PHYSDEV, {
  write: ({ inverted }, { invert, bitmask }) => [
    invert.put(inverted ? xt.XT_PHYSDEV_OP_ISIN : 0),
    bitmask.put(xt.XT_PHYSDEV_OP_ISIN),
  ],
  read(info, { invert, bitmask }) {
    const inverted = invert.get(info)
    if (bitmask.get(info) !== xt.XT_PHYSDEV_OP_ISIN || (inverted & ~xt.XT_PHYSDEV_OP_ISIN) !== 0)
      return undefined
    return { kind: 'physdev-is-in', inverted: inverted !== 0 }
  },
})

const IPVS_ASKED = xt.XT_IPVS_IPVS_PROPERTY | xt.XT_IPVS_VADDR | xt.XT_IPVS_VPORT

export const IPVS = codec('ipvs', structs.IPVS, {
  write({ vproto, vaddr, vport }, fields) {
    const whole = '\xff'.repeat(vaddr.mask.length)
    return [
      fields.vaddr.put(vaddr.ip),
      // iptables writes only the own bytes of an explicit mask; without a mask it fills the whole field.
      fields.vmask.put(vaddr.mask === whole ? ALL_BITS : vaddr.mask),
      fields.vport.put(vport),
      fields.l4proto.put(vproto ?? 0),
      fields.invert.put(vaddr.inverted ? xt.XT_IPVS_VADDR : 0),
      fields.bitmask.put(IPVS_ASKED | (vproto === undefined ? 0 : xt.XT_IPVS_PROTO)),
    ]
  },
  read(info, fields, family) {
    const [asked, invert, vproto] = [
      fields.bitmask.get(info),
      fields.invert.get(info),
      fields.l4proto.get(info),
    ]
    const length = family === 'ip' ? 4 : 16
    const ip = fields.vaddr.get(info)
    const mask = fields.vmask.get(info)
    const other =
      (asked & ~xt.XT_IPVS_PROTO) !== IPVS_ASKED ||
      (asked === IPVS_ASKED && vproto !== 0) ||
      (invert & ~xt.XT_IPVS_VADDR) !== 0 ||
      !isZero(ip, length, 16) ||
      !(mask === ALL_BITS || isZero(mask, length, 16))
    if (other) return undefined
    const vaddr = { ip: ip.slice(0, length), mask: mask.slice(0, length), inverted: invert !== 0 }
    const vport = fields.vport.get(info)
    return asked === IPVS_ASKED ? { kind: 'ipvs', vaddr, vport } : { kind: 'ipvs', vproto, vaddr, vport }
  },
})

export const readMatch = decoderOf<XtMatch>([
  COMMENT,
  CONNTRACK,
  STATISTIC,
  RECENT,
  OLD_MARK,
  ADDRTYPE,
  TCP,
  UDP,
  SCTP,
  OLD_NFACCT,
  NFACCT,
  PHYSDEV,
  IPVS,
])

/** Returns the text before the first NUL of a zero-padded field; undefined for anything else. */
function padded(info: Octets, from: number, to: number): string | undefined {
  const octets = cString(info.slice(from, to))
  const end = from + octets.length
  return end < to && isZero(info, end, to) ? textOfOctets(octets) : undefined
}

function withoutNul(octets: Octets): Octets {
  if (octets.includes('\0')) throw unencodable(`a name with a NUL: ${JSON.stringify(octets)}`)
  return octets
}

/** Reads nf_tables' own limit; undefined for one in another form: of bytes, or by another time than a second. */
export function readLimit(one: RawExpression): XtMatch | undefined {
  const { rate, burst } = attributesOf(EXPRESSIONS.limit, one) ?? {}
  if (rate === undefined || burst === undefined || rate > 0xffff_ffffn) return undefined
  const perSecond = Number(rate)
  return limit(perSecond, burst) === rawExpression(one) ? { kind: 'limit', perSecond, burst } : undefined
}
