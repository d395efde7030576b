import type { Ip } from '../../base/ip.ts'
import type { Octets } from '../../base/octets.ts'
import * as nft from '../nft/constants.ts'
import type { NftFamily } from '../nft/state.ts'
import { readMark } from './match.ts'
import * as xt from './rule.ts'
import * as structs from './struct.ts'
import { decoderOf, isZero, type ReadStruct, structReader } from './struct.ts'

/* Matches and targets that kprobe does not write, as far as the evaluator of src/proof follows them. */

type ForeignMatch =
  /** Ports, or ranges of them, of one side or of either. */
  | {
      readonly kind: 'multiport'
      readonly side: 'source' | 'destination' | 'either'
      readonly ranges: readonly { readonly from: number; readonly to: number }[]
      readonly inverted: boolean
    }
  /** `share` of all packets, by chance or by counting. */
  | { readonly kind: 'statistic'; readonly share: number }
  /** The ports of a match that has other options as well. */
  | {
      readonly kind: 'ports'
      readonly name: 'tcp'
      readonly source: xt.XtPorts | undefined
      readonly destination: xt.XtPorts | undefined
    }
  | { readonly kind: 'connmark'; readonly mark: number; readonly mask: number; readonly inverted: boolean }

export type ForeignTarget =
  | { readonly kind: 'MASQUERADE' | 'NOTRACK' }
  /** Redirects to this node; without a port, to that of the packet. */
  | { readonly kind: 'REDIRECT'; readonly port: number | undefined }
  | { readonly kind: 'SNAT'; readonly ip: Ip }
  /** `set` changes the mark of the connection, `save` copies that of the packet to it, `restore` copies it back. */
  | {
      readonly kind: 'CONNMARK'
      readonly mode: 'set' | 'save' | 'restore'
      readonly mark: number
      readonly connectionMask: number
      readonly packetMask: number
    }
  /** Decides nothing about packets. */
  | { readonly kind: 'note' }

const SIDES = ['source', 'destination', 'either'] as const

const MULTIPORT = structReader(structs.MULTIPORT, (info, fields): ForeignMatch | undefined => {
  const side = SIDES[fields.flags.get(info)]
  const [count, inverted] = [fields.count.get(info), fields.invert.get(info)]
  if (side === undefined || count > structs.MULTIPORT.fields.pflags.length || inverted > 1) return undefined
  const [ports, begins] = [fields.ports.get(info), fields.pflags.get(info)]
  const portAt = (at: number) => ports.charCodeAt(at * 2) | (ports.charCodeAt(at * 2 + 1) << 8)
  const ranges: { from: number; to: number }[] = []
  for (let at = 0; at < count; at++) {
    const from = portAt(at)
    if (begins.charCodeAt(at) !== 0) at++
    ranges.push({ from, to: portAt(at) })
  }
  return { kind: 'multiport', side, ranges, inverted: inverted === 1 }
})

const STATISTIC = structReader(structs.STATISTIC_NTH, (info, fields): ForeignMatch | undefined => {
  const [mode, flags] = [fields.mode.get(info), fields.flags.get(info)]
  if (flags > xt.XT_STATISTIC_INVERT) return undefined
  const every = fields.every.get(info)
  const isRandom = mode === xt.XT_STATISTIC_MODE_RANDOM
  if (!isRandom && mode !== xt.XT_STATISTIC_MODE_NTH) return undefined
  const share = isRandom ? Math.min(1, every / xt.XT_STATISTIC_UNITS) : 1 / (every + 1)
  return { kind: 'statistic', share: flags === 0 ? share : 1 - share }
})

const CONNMARK_MATCH = structReader(structs.CONNMARK_MATCH, (info, fields): ForeignMatch | undefined =>
  readMark('connmark', info, fields),
)

const MODES = ['set', 'save', 'restore'] as const

function connmark(
  info: Octets,
  { ctmark, ctmask, nfmask, mode }: typeof structs.CONNMARK_V1.fields,
): ForeignTarget | undefined {
  const name = MODES[mode.get(info)]
  if (name === undefined) return undefined
  const [mark, connectionMask, packetMask] = [ctmark.get(info), ctmask.get(info), nfmask.get(info)]
  return { kind: 'CONNMARK', mode: name, mark, connectionMask, packetMask }
}

const CONNMARKS: Parameters<typeof decoderOf<ForeignTarget>>[0] = [
  structReader(structs.CONNMARK_V1, connmark),
  structReader(structs.CONNMARK_V2, (info, fields) =>
    fields.shiftBits.get(info) === 0 ? connmark(info, fields) : undefined,
  ),
]

const ADDRESS_LENGTHS = { ip: 4, ip6: 16 } as const
/** Ports of the source are not followed: any flags for them will do. */
const MAP_IPS = nft.NF_NAT_RANGE_MAP_IPS

function snat(info: string, fields: typeof structs.SNAT_V2.fields, family: NftFamily) {
  const length = ADDRESS_LENGTHS[family]
  const [ip, last] = [fields.minAddr.get(info), fields.maxAddr.get(info)]
  const isOne = ip === last && isZero(ip, length, ip.length) && (fields.flags.get(info) & MAP_IPS) !== 0
  return isOne ? ({ kind: 'SNAT', ip: ip.slice(0, length) } as const) : undefined
}

const SNAT_V1 = structReader(structs.SNAT_V1, snat)
const SNAT_V2 = structReader(structs.SNAT_V2, snat)
const SNAT_MULTI = structReader(structs.SNAT_MULTI, (info, fields) =>
  fields.rangesize.get(info) === 1 ? snat(info, fields, 'ip') : undefined,
)

const TCP = structReader(structs.TCP, (info, fields): ForeignMatch => {
  const flags = fields.invflags.get(info)
  const ports = (from: number, to: number, flag: number) => ({ from, to, inverted: (flags & flag) !== 0 })
  return {
    kind: 'ports',
    name: 'tcp',
    source: ports(fields.sourceFrom.get(info), fields.sourceTo.get(info), xt.XT_TCP_INV_SRCPT),
    destination: ports(fields.destFrom.get(info), fields.destTo.get(info), xt.XT_TCP_INV_DSTPT),
  }
})

export const readForeignMatch = decoderOf<ForeignMatch>([MULTIPORT, STATISTIC, CONNMARK_MATCH, TCP])

function redirect(info: string, { flags, minPort, maxPort }: typeof structs.REDIRECT_V6.fields) {
  if ((flags.get(info) & nft.NF_NAT_RANGE_PROTO_SPECIFIED) === 0)
    return { kind: 'REDIRECT', port: undefined } as const
  const port = minPort.get(info)
  return port === maxPort.get(info) ? ({ kind: 'REDIRECT', port } as const) : undefined
}

const TARGETS = {
  ip: decoderOf<ForeignTarget>([
    ...CONNMARKS,
    SNAT_MULTI,
    SNAT_V1,
    SNAT_V2,
    structReader(structs.REDIRECT_V4, redirect),
  ]),
  ip6: decoderOf<ForeignTarget>([
    ...CONNMARKS,
    SNAT_V1,
    SNAT_V2,
    structReader(structs.REDIRECT_V6, redirect),
  ]),
} as const
/** They log, or change what decides about no packet. */
const NOTES: readonly string[] = [
  ...['LOG', 'NFLOG', 'TRACE', 'AUDIT', 'LED', 'TEE', 'RATEEST', 'IDLETIMER', 'SET', 'CLASSIFY'],
  ...['TCPMSS', 'TCPOPTSTRIP', 'DSCP', 'TOS', 'TTL', 'HL', 'CHECKSUM', 'SECMARK', 'CONNSECMARK'],
]
/** XT_CT_NOTRACK of struct xt_ct_target_info; behind the flags stands the zone. */
const CT_NOTRACK = 1

export function readForeignTarget(one: ReadStruct, family: NftFamily): ForeignTarget | undefined {
  const { name, info } = one
  if (NOTES.includes(name)) return { kind: 'note' }
  if (name === 'MASQUERADE' || name === 'NOTRACK') return { kind: name }
  if (name !== 'CT') return TARGETS[family](one, family)
  if ((info.charCodeAt(0) & CT_NOTRACK) !== 0) return { kind: 'NOTRACK' }
  return isZero(info, 0, 4) ? { kind: 'note' } : undefined
}
