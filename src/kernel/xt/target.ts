import { formatIp } from '../../base/ip.ts'
import type { Octets } from '../../base/octets.ts'
import { unencodable } from '../../netlink/errors.ts'
import type { NftFamily } from '../nft/state.ts'
import * as xt from './constants.ts'
import { compatHead } from './expressions.ts'
import type { XtTarget } from './rule.ts'
import { type Fields, fits, isZero, layOut, type Part, type Struct } from './struct.ts'
import * as structs from './structs.ts'

/** Codecs between xtables targets as values and their structures. */

type TargetOf<K extends XtTarget['kind']> = Extract<XtTarget, { readonly kind: K }>

interface TargetCodec<T extends XtTarget> {
  /** Encodes the whole expression. Throws NetlinkError for a value that does not fit. */
  readonly write: (target: T) => Octets
  /** Decodes a structure; undefined where a target value cannot represent it. */
  readonly read: (info: Octets) => T | undefined
  readonly struct: { readonly name: string; readonly revision: number }
}

interface Ways<T, F> {
  /** Returns the parts in the order of their offsets. */
  readonly write: (target: T, fields: F) => readonly Part[]
  /** Decodes a structure of the right size. */
  readonly read: (info: Octets, fields: F) => T | undefined
}

function codec<T extends XtTarget, F extends Fields>(struct: Struct<F>, ways: Ways<T, F>): TargetCodec<T> {
  const head = compatHead('target', struct)
  const { fields } = struct
  return {
    struct,
    write: target => head + layOut(struct, ways.write(target, fields)),
    read: info => (fits(struct, info) ? ways.read(info, fields) : undefined),
  }
}

/** enum ipt_reject_with, in the words of iptables. */
const REJECT_WORDS_V4 = [
  'icmp-net-unreachable',
  'icmp-host-unreachable',
  'icmp-proto-unreachable',
  'icmp-port-unreachable',
  undefined,
  'icmp-net-prohibited',
  'icmp-host-prohibited',
  'tcp-reset',
  'icmp-admin-prohibited',
] as const

/** enum ip6t_reject_with. */
const REJECT_WORDS_V6 = [
  'icmp6-no-route',
  'icmp6-adm-prohibited',
  undefined,
  'icmp6-addr-unreachable',
  'icmp6-port-unreachable',
  undefined,
  'tcp-reset',
  'icmp6-policy-fail',
  'icmp6-reject-route',
] as const

function rejectCodec(words: readonly (string | undefined)[]): TargetCodec<TargetOf<'REJECT'>> {
  return codec<TargetOf<'REJECT'>, typeof structs.REJECT.fields>(structs.REJECT, {
    write(target, fields) {
      const code = words.indexOf(target.with)
      if (code < 0) throw unencodable(`REJECT with ${target.with}`)
      return [fields.with.put(code)]
    },
    read(info, fields) {
      const word = words[fields.with.get(info)]
      return word === undefined ? undefined : { kind: 'REJECT', with: word }
    },
  })
}

export const REJECT = { ip: rejectCodec(REJECT_WORDS_V4), ip6: rejectCodec(REJECT_WORDS_V6) } as const

export const MARK = codec<TargetOf<'MARK'>, typeof structs.MARK.fields>(structs.MARK, {
  write: ({ value, mask }, fields) => [fields.mark.put(value), fields.mask.put(mask)],
  read: (info, { mark, mask }) => ({ kind: 'MARK', value: mark.get(info), mask: mask.get(info) }),
})

const RANDOM_FULLY = xt.NF_NAT_RANGE_PROTO_RANDOM_FULLY

function readMasquerade(flags: number): TargetOf<'MASQUERADE'> | undefined {
  return (flags & ~RANDOM_FULLY) === 0 ? { kind: 'MASQUERADE', randomFully: flags !== 0 } : undefined
}

export const MASQUERADE = {
  ip: codec<TargetOf<'MASQUERADE'>, typeof structs.MASQUERADE_V4.fields>(structs.MASQUERADE_V4, {
    write: ({ randomFully }, { rangesize, flags }) => [
      rangesize.put(1),
      flags.put(randomFully ? RANDOM_FULLY : 0),
    ],
    read: (info, { rangesize, flags }) =>
      rangesize.get(info) === 1 ? readMasquerade(flags.get(info)) : undefined,
  }),
  ip6: codec<TargetOf<'MASQUERADE'>, typeof structs.MASQUERADE_V6.fields>(structs.MASQUERADE_V6, {
    write: ({ randomFully }, { flags }) => [flags.put(randomFully ? RANDOM_FULLY : 0)],
    read: (info, { flags }) => readMasquerade(flags.get(info)),
  }),
} as const

type Dnat = TargetOf<'DNAT'>
type NatRange = typeof structs.DNAT.fields

const MAP_PORT = xt.NF_NAT_RANGE_MAP_IPS | xt.NF_NAT_RANGE_PROTO_SPECIFIED

function dnatWays(family: NftFamily): Ways<Dnat, Omit<NatRange, 'rangesize'>> {
  const length = family === 'ip' ? 4 : 16
  return {
    write({ ip, port }, fields) {
      if (ip.length !== length) throw unencodable(`DNAT to ${formatIp(ip)} in ${family}`)
      const flags = port === 0 ? xt.NF_NAT_RANGE_MAP_IPS : MAP_PORT
      return [
        fields.flags.put(flags),
        fields.minAddr.put(ip),
        fields.maxAddr.put(ip),
        fields.minPort.put(port),
        fields.maxPort.put(port),
      ]
    },
    read(info, fields) {
      const [ip, last] = [fields.minAddr.get(info), fields.maxAddr.get(info)]
      const [port, lastPort] = [fields.minPort.get(info), fields.maxPort.get(info)]
      if (ip !== last || port !== lastPort || !isZero(ip, length, ip.length)) return undefined
      if (fields.flags.get(info) !== (port === 0 ? xt.NF_NAT_RANGE_MAP_IPS : MAP_PORT)) return undefined
      return { kind: 'DNAT', ip: ip.slice(0, length), port }
    },
  }
}

export const DNAT = {
  ip: codec<Dnat, typeof structs.DNAT.fields>(structs.DNAT, dnatWays('ip')),
  ip6: codec<Dnat, typeof structs.DNAT.fields>(structs.DNAT, dnatWays('ip6')),
} as const

/** The form that older tools write. */
const OLD_DNAT = codec<Dnat, typeof structs.DNAT_MULTI.fields>(structs.DNAT_MULTI, {
  write: (target, fields) => [fields.rangesize.put(1), ...dnatWays('ip').write(target, fields)],
  read: (info, fields) => (fields.rangesize.get(info) === 1 ? dnatWays('ip').read(info, fields) : undefined),
})

const READERS = {
  ip: new Map([
    reader(REJECT.ip),
    reader(MARK),
    reader(MASQUERADE.ip),
    reader(DNAT.ip),
    reader(OLD_DNAT),
    reader(codec<Dnat, typeof structs.DNAT_V1.fields>(structs.DNAT_V1, dnatWays('ip'))),
  ]),
  ip6: new Map([
    reader(REJECT.ip6),
    reader(MARK),
    reader(MASQUERADE.ip6),
    reader(DNAT.ip6),
    reader(codec<Dnat, typeof structs.DNAT_V1.fields>(structs.DNAT_V1, dnatWays('ip6'))),
  ]),
} as const

type ReadTarget = (info: Octets) => XtTarget | undefined

function reader({
  struct,
  read,
}: {
  readonly struct: { readonly name: string; readonly revision: number }
  readonly read: ReadTarget
}): [string, ReadTarget] {
  return [`${struct.name} ${struct.revision}`, read]
}

/** Decodes a target; undefined for unknown targets and revisions, and for options that our types lack. */
export function readTarget(
  { name, revision, info }: { readonly name: string; readonly revision: number; readonly info: Octets },
  family: NftFamily,
): XtTarget | undefined {
  return READERS[family].get(`${name} ${revision}`)?.(info)
}
