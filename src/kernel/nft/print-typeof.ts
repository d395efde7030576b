import { type Octets, readU32host } from '../../base/octets.ts'
import * as nft from './datatypes.ts'
import { metaSource } from './print-source.ts'
import type { NftSet } from './state.ts'
import { DESTINATION, DESTINATION_PORT, DESTINATION_PORTS, SOURCE } from './typeof.ts'
import { decodeUserdata } from './userdata.ts'

/** `ip daddr . th dport : meta priority`, as nft reads it in the userdata of a set; undefined where that says nothing. */
export function formatTypeof(set: Pick<NftSet, 'dataType' | 'userdata'>): string | undefined {
  const texts = [nft.NFTNL_UDATA_SET_KEY_TYPEOF, nft.NFTNL_UDATA_SET_DATA_TYPEOF]
    .slice(0, set.dataType === undefined ? 1 : 2)
    .map(type => decodeUserdata(set.userdata).find(item => item.type === type))
    .map(item => (item === undefined ? undefined : formatExpression(item.value)))
  return texts.includes(undefined) ? undefined : texts.join(' : ')
}

const HEADER_FIELDS: ReadonlyMap<Octets, string> = new Map([
  [SOURCE.ip.expression, 'ip saddr'],
  [SOURCE.ip6.expression, 'ip6 saddr'],
  [DESTINATION.ip.expression, 'ip daddr'],
  [DESTINATION.ip6.expression, 'ip6 daddr'],
  [DESTINATION_PORT.expression, 'th dport'],
  [DESTINATION_PORTS.TCP.expression, 'tcp dport'],
  [DESTINATION_PORTS.UDP.expression, 'udp dport'],
  [DESTINATION_PORTS.SCTP.expression, 'sctp dport'],
])

const BASES: ReadonlyMap<number, string> = new Map([
  [nft.PROTO_BASE_NETWORK_HDR, 'nh'],
  [nft.PROTO_BASE_TRANSPORT_HDR, 'th'],
])

function formatExpression(octets: Octets): string | undefined {
  const [kind, data] = decodeUserdata(octets).map(({ value }) => value)
  if (kind === undefined || data === undefined) return undefined
  switch (readU32host(kind)) {
    case nft.EXPR_VERDICT:
      return 'verdict'
    case nft.EXPR_META:
      return formatNumbers(data, ([key]) => (key === undefined ? undefined : metaSource(key).text))
    case nft.EXPR_NUMGEN:
      return formatNumbers(data, ([, modulus]) => `numgen random mod ${modulus}`)
    case nft.EXPR_PAYLOAD:
      return HEADER_FIELDS.get(octets) ?? formatNumbers(data, formatRaw)
    case nft.EXPR_CONCAT: {
      const members = decodeUserdata(data).map(({ value }) => formatExpression(value))
      return members.length < 2 || members.includes(undefined) ? undefined : members.join(' . ')
    }
    default:
      return undefined
  }
}

function formatRaw([, , base = 0, offset, length]: readonly number[]): string | undefined {
  const header = BASES.get(base)
  return header === undefined ? undefined : `@${header},${offset},${length}`
}

function formatNumbers<T>(data: Octets, format: (numbers: readonly number[]) => T): T {
  return format(decodeUserdata(data).map(({ value }) => readU32host(value)))
}
