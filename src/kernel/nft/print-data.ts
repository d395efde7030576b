import { formatIp } from '../../base/ip.ts'
import { hex, type Octets, readU16be, readU32host } from '../../base/octets.ts'
import * as nft from './constants.ts'
import * as datatypes from './datatypes.ts'
import type { Element, ElementData, NftSet, Verdict } from './state.ts'

/** The name and notation of a datatype in nft 1.0.6, for the types that our sets have. */
interface Datatype {
  readonly name: string
  readonly length: number
  readonly format: (data: Octets) => string
}

const PROTOCOLS: Readonly<Record<number, string>> = {
  [nft.IPPROTO_ICMP]: 'icmp',
  [nft.IPPROTO_TCP]: 'tcp',
  [nft.IPPROTO_UDP]: 'udp',
  [nft.IPPROTO_ICMPV6]: 'ipv6-icmp',
  [nft.IPPROTO_SCTP]: 'sctp',
}

/** The length is that of the value. */
const INTEGER: Datatype = { name: 'integer', length: 0, format: formatInteger }

const DATATYPES: ReadonlyMap<number, Datatype> = new Map([
  [datatypes.TYPE_NFPROTO, { name: 'nf_proto', length: 1, format: formatFamily }],
  [datatypes.TYPE_INTEGER, INTEGER],
  [datatypes.TYPE_IPADDR, { name: 'ipv4_addr', length: 4, format: formatIp }],
  [datatypes.TYPE_IP6ADDR, { name: 'ipv6_addr', length: 16, format: formatIp }],
  [datatypes.TYPE_INET_PROTOCOL, { name: 'inet_proto', length: 1, format: formatProtocol }],
  [datatypes.TYPE_INET_SERVICE, { name: 'inet_service', length: 2, format: data => String(readU16be(data)) }],
  [datatypes.TYPE_MARK, { name: 'mark', length: 4, format: formatMark }],
  [datatypes.TYPE_CLASSID, { name: 'classid', length: 4, format: formatClassid }],
])

const VERDICT_WORDS: ReadonlyMap<number, string> = new Map([
  [nft.NF_DROP, 'drop'],
  [nft.NF_ACCEPT, 'accept'],
  [nft.NFT_CONTINUE, 'continue'],
  [nft.NFT_BREAK, 'break'],
  [nft.NFT_JUMP, 'jump'],
  [nft.NFT_GOTO, 'goto'],
  [nft.NFT_RETURN, 'return'],
])

export function flagNames(
  flags: number,
  names: readonly (readonly [bit: number, name: string])[],
): readonly string[] {
  return names.filter(([bit]) => (flags & bit) !== 0).map(([, name]) => name)
}

/** Formats a type: `ipv4_addr . inet_proto`; a type that we do not use shows its number. */
export function formatType(type: number): string {
  if (type === nft.NFT_DATA_VERDICT) return 'verdict'
  return fieldsOf(type)
    .map(field => DATATYPES.get(field)?.name ?? `type ${field}`)
    .join(' . ')
}

/** Formats a value: `10.96.0.10 . tcp . 53`; hexadecimal where kprobe does not use the type or the length. */
export function formatValue(type: number, data: Octets): string {
  const types = fieldsOf(type).map(field => DATATYPES.get(field))
  const texts: string[] = []
  let at = 0
  for (const datatype of types) {
    if (datatype === INTEGER) {
      texts.push(formatInteger(data.slice(at)))
      return texts.join(' . ')
    }
    if (datatype === undefined) return `0x${hex(data)}`
    texts.push(datatype.format(data.slice(at, at + datatype.length)))
    // Each field of a concatenation fills whole registers; a single type does not.
    at += types.length === 1 ? datatype.length : Math.ceil(datatype.length / 4) * 4
  }
  return at === data.length ? texts.join(' . ') : `0x${hex(data)}`
}

export function formatElementKey(set: Pick<NftSet, 'keyType'>, key: Octets): string {
  return formatValue(set.keyType, key)
}

/** Formats the data of an element; empty for elements of plain sets. */
export function formatElementData(set: Pick<NftSet, 'dataType'>, data: ElementData): string {
  if (data === undefined) return ''
  if (typeof data === 'object') return formatVerdict(data)
  return formatValue(set.dataType ?? 0, data)
}

/** Formats an element as nft lists it: `10.96.0.10 . tcp . 53 comment "ns1/dns:udp" : 8000:2010`. */
export function formatElement(set: Pick<NftSet, 'keyType' | 'dataType'>, element: Element): string {
  const { key, data, comment, expiresMs = 0 } = element
  const expires = expiresMs > 0 ? ` expires ${formatDuration(expiresMs)}` : ''
  const value = data === undefined ? '' : ` : ${formatElementData(set, data)}`
  return `${formatElementKey(set, key)}${expires}${formatComment(comment)}${value}`
}

/** Formats ` comment "..."` with a leading blank, or nothing. Escapes text so that a line stays one line. */
export function formatComment(comment: string | undefined): string {
  return comment === undefined || comment === '' ? '' : ` comment ${JSON.stringify(comment)}`
}

export function formatVerdict({ code, chain }: Verdict): string {
  const word = VERDICT_WORDS.get(code) ?? `verdict ${code}`
  return chain === undefined ? word : `${word} ${chain}`
}

/** Formats a time as nft does: `3h`, `1m30s`, `250ms`. */
export function formatDuration(ms: number): string {
  const parts: readonly (readonly [string, number])[] = [
    ['d', 86_400_000],
    ['h', 3_600_000],
    ['m', 60_000],
    ['s', 1000],
    ['ms', 1],
  ]
  let rest = ms
  let text = ''
  for (const [unit, length] of parts) {
    const count = Math.floor(rest / length)
    if (count > 0) text += `${count}${unit}`
    rest -= count * length
  }
  return text === '' ? '0s' : text
}

/** Splits the type of a concatenation: six bits per field, the first field highest. */
function fieldsOf(type: number): readonly number[] {
  const fields: number[] = []
  for (let rest = type >>> 0; rest > 0; rest = Math.floor(rest / 64)) fields.unshift(rest % 64)
  return fields
}

function formatMark(data: Octets): string {
  return `0x${readU32host(data).toString(16).padStart(8, '0')}`
}

/** Formats a class id as tc does, `8000:2010`; nft has names for two of them. */
function formatClassid(data: Octets): string {
  const value = readU32host(data)
  if (value === 0) return 'none'
  if (value === 0xffffffff) return 'root'
  return `${(value >>> 16).toString(16)}:${(value & 0xffff).toString(16)}`
}

/** Formats a number of one register in host order; a longer value is part of a header. */
function formatInteger(data: Octets): string {
  return data.length === 4 ? String(readU32host(data)) : `0x${hex(data).replace(/^0+(?=.)/, '')}`
}

function formatFamily(data: Octets): string {
  const number = data.charCodeAt(0)
  return number === nft.NFPROTO_IPV4 ? 'ipv4' : number === nft.NFPROTO_IPV6 ? 'ipv6' : String(number)
}

function formatProtocol(data: Octets): string {
  const number = data.charCodeAt(0)
  return PROTOCOLS[number] ?? String(number)
}
