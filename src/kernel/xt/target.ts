import { formatIp } from '../../base/ip.ts'
import { unencodable } from '../../netlink/errors.ts'
import * as nft from '../nft/constants.ts'
import { EXPRESSIONS } from '../nft/schema.ts'
import type { NftFamily } from '../nft/state.ts'
import { attributesOf, log, type RawExpression, rawExpression } from './expressions.ts'
import type { XtTarget, XtUnknown } from './rule.ts'
import * as structs from './struct.ts'
import { type Codec, decoderOf, type Fields, isZero, type Struct, structCodec, type Ways } from './struct.ts'

type TargetOf<K extends XtTarget['kind']> = XtTarget & { readonly kind: K }

function codec<K extends XtTarget['kind'], F extends Fields>(
  _: K,
  struct: Struct<F>,
  ways: Ways<TargetOf<K>, F>,
): Codec<TargetOf<K>> {
  return structCodec('target', struct, ways)
}

/** enum ipt_reject_with and enum ip6t_reject_with, in the words of iptables. */
const REJECT_WORDS: Readonly<Record<NftFamily, readonly (string | undefined)[]>> = {
  ip: [
    'icmp-net-unreachable',
    'icmp-host-unreachable',
    'icmp-proto-unreachable',
    'icmp-port-unreachable',
    undefined,
    'icmp-net-prohibited',
    'icmp-host-prohibited',
    'tcp-reset',
    'icmp-admin-prohibited',
  ],
  ip6: [
    'icmp6-no-route',
    'icmp6-adm-prohibited',
    undefined,
    'icmp6-addr-unreachable',
    'icmp6-port-unreachable',
    undefined,
    'tcp-reset',
    'icmp6-policy-fail',
    'icmp6-reject-route',
  ],
}

export const REJECT = codec('REJECT', structs.REJECT, {
  write(target, fields, family) {
    const code = REJECT_WORDS[family].indexOf(target.with)
    if (code < 0) throw unencodable(`REJECT with ${target.with}`)
    return [fields.with.put(code)]
  },
  read(info, fields, family) {
    const word = REJECT_WORDS[family][fields.with.get(info)]
    return word === undefined ? undefined : { kind: 'REJECT', with: word }
  },
})

export const MARK = codec('MARK', structs.MARK, {
  write: ({ value, mask }, fields) => [fields.mark.put(value), fields.mask.put(mask)],
  read: (info, { mark, mask }) => ({ kind: 'MARK', value: mark.get(info), mask: mask.get(info) }),
})

const RANDOM_FULLY = nft.NF_NAT_RANGE_PROTO_RANDOM_FULLY

function readMasquerade(flags: number): TargetOf<'MASQUERADE'> | undefined {
  return (flags & ~RANDOM_FULLY) === 0 ? { kind: 'MASQUERADE', randomFully: flags !== 0 } : undefined
}

export const MASQUERADE = {
  ip: codec('MASQUERADE', structs.MASQUERADE_V4, {
    write: ({ randomFully }, { rangesize, flags }) => [
      rangesize.put(1),
      flags.put(randomFully ? RANDOM_FULLY : 0),
    ],
    read: (info, { rangesize, flags }) =>
      rangesize.get(info) === 1 ? readMasquerade(flags.get(info)) : undefined,
  }),
  ip6: codec('MASQUERADE', structs.MASQUERADE_V6, {
    write: ({ randomFully }, { flags }) => [flags.put(randomFully ? RANDOM_FULLY : 0)],
    read: (info, { flags }) => readMasquerade(flags.get(info)),
  }),
} as const

const MAP_PORT = nft.NF_NAT_RANGE_MAP_IPS | nft.NF_NAT_RANGE_PROTO_SPECIFIED
const ADDRESS_LENGTHS = { ip: 4, ip6: 16 } as const

const DNAT_WAYS: Ways<TargetOf<'DNAT'>, typeof structs.DNAT.fields> = {
  write({ ip, port }, fields, family) {
    if (ip.length !== ADDRESS_LENGTHS[family]) throw unencodable(`DNAT to ${formatIp(ip)} in ${family}`)
    const flags = port === 0 ? nft.NF_NAT_RANGE_MAP_IPS : MAP_PORT
    return [
      fields.flags.put(flags),
      fields.minAddr.put(ip),
      fields.maxAddr.put(ip),
      fields.minPort.put(port),
      fields.maxPort.put(port),
    ]
  },
  read(info, fields, family) {
    const length = ADDRESS_LENGTHS[family]
    const [ip, last] = [fields.minAddr.get(info), fields.maxAddr.get(info)]
    const [port, lastPort] = [fields.minPort.get(info), fields.maxPort.get(info)]
    if (ip !== last || port !== lastPort || !isZero(ip, length, ip.length)) return undefined
    if (fields.flags.get(info) !== (port === 0 ? nft.NF_NAT_RANGE_MAP_IPS : MAP_PORT)) return undefined
    return { kind: 'DNAT', ip: ip.slice(0, length), port }
  },
}

export const DNAT = codec('DNAT', structs.DNAT, DNAT_WAYS)
/** The forms that older tools write; the second one exists for IPv4 alone. */
const DNAT_V1 = codec('DNAT', structs.DNAT_V1, DNAT_WAYS)
const DNAT_MULTI = codec('DNAT', structs.DNAT_MULTI, {
  write: (target, fields, family) => [fields.rangesize.put(1), ...DNAT_WAYS.write(target, fields, family)],
  read: (info, fields, family) =>
    fields.rangesize.get(info) === 1 ? DNAT_WAYS.read(info, fields, family) : undefined,
})

const DECODERS = {
  ip: decoderOf<XtTarget>([REJECT, MARK, MASQUERADE.ip, DNAT, DNAT_V1, DNAT_MULTI]),
  ip6: decoderOf<XtTarget>([REJECT, MARK, MASQUERADE.ip6, DNAT, DNAT_V1]),
} as const

export function readTarget(one: XtUnknown, family: NftFamily): XtTarget | undefined {
  return DECODERS[family](one, family)
}

/** Reads nf_tables' own log; undefined for one in another form, such as one to the kernel's log. */
export function readLog(one: RawExpression): XtTarget | undefined {
  if (one.name !== 'log') return undefined
  const { group, prefix, snaplen: packetBytes } = attributesOf(EXPRESSIONS.log, one) ?? {}
  if (group === undefined || prefix === undefined || packetBytes === undefined) return undefined
  const isSame = log(prefix, group, packetBytes) === rawExpression(one)
  return isSame ? { kind: 'NFLOG', group, prefix, packetBytes } : undefined
}
