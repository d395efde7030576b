import { bytesFromOctets, cString, type Octets, octetsFromBytes, u32host } from '../../base/octets.ts'
import { unencodable } from '../../netlink/errors.ts'
import * as nft from './constants.ts'
import * as datatypes from './datatypes.ts'
import type { NftFamily, NftSet } from './state.ts'

/** libnftnl's userdata: type (8 bits), length (8 bits), value. The kernel stores it without parsing it. */
interface UserdataItem {
  readonly type: number
  readonly value: Octets
}

export function encodeUserdata(items: readonly UserdataItem[]): Octets {
  let octets = ''
  let isTooLong = false
  for (const { type, value } of items) {
    octets += String.fromCharCode(type, value.length) + value
    isTooLong ||= value.length > 255
  }
  if (isTooLong || octets.length > nft.NFT_USERDATA_MAXLEN)
    throw unencodable(`userdata of ${octets.length} bytes is longer than ${nft.NFT_USERDATA_MAXLEN}`)
  return octets
}

/** Encodes a comment as nft stores it, with its NUL; undefined for an empty one. */
export function commentUserdata(type: number, comment: string): Octets | undefined {
  if (comment === '') return undefined
  const octets = isAscii(comment) ? comment : octetsFromBytes(new TextEncoder().encode(comment))
  return encodeUserdata([{ type, value: `${octets}\0` }])
}

/** Decodes the comment of userdata that any program may have written; empty when there is no valid one. */
export function commentOf(type: number, userdata: Octets | undefined): string {
  if (userdata === undefined) return ''
  const item = decodeUserdata(userdata).find(({ type: of, value }) => of === type && value !== '')
  return item === undefined ? '' : textOf(item.value)
}

/** Splits userdata that any program may have written into items; the last item may be shorter than its length says. */
export function decodeUserdata(userdata: Octets): readonly UserdataItem[] {
  const items: UserdataItem[] = []
  for (let at = 0; at + 2 <= userdata.length; ) {
    const length = userdata.charCodeAt(at + 1)
    items.push({ type: userdata.charCodeAt(at), value: userdata.slice(at + 2, at + 2 + length) })
    at += 2 + length
  }
  return items
}

function textOf(octets: Octets): string {
  const text = cString(octets)
  return isAscii(text) ? text : new TextDecoder().decode(bytesFromOctets(text))
}

function isAscii(text: string): boolean {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: the range of ASCII
  return /^[\x00-\x7f]*$/.test(text)
}

/**
 * A field of a set's key or data, described by an expression (`typeof ip daddr`). Without such descriptions, nft
 * cannot parse its own listing of a set whose types have no fixed length.
 */
export interface TypeofField {
  readonly type: number
  /** Bytes. */
  readonly length: number
  readonly byteOrder: number
  /** The expression in the form that nft stores in the userdata of a set. */
  readonly expression: Octets
}

/** Userdata items of types 0, 1, 2 and so on. */
function inOrder(values: readonly Octets[]): Octets {
  return encodeUserdata(values.map((value, type) => ({ type, value })))
}

function numbers(...values: readonly number[]): Octets {
  return inOrder(values.map(u32host))
}

function expression(kind: number, data: Octets): Octets {
  return inOrder([u32host(kind), data])
}

function header(
  desc: number,
  field: number,
  of: { readonly type: number; readonly length: number },
): TypeofField {
  return {
    ...of,
    byteOrder: datatypes.BYTEORDER_BIG_ENDIAN,
    expression: expression(datatypes.EXPR_PAYLOAD, numbers(desc, field)),
  }
}

const ADDRESS_4 = { type: datatypes.TYPE_IPADDR, length: 4 } as const
const ADDRESS_6 = { type: datatypes.TYPE_IP6ADDR, length: 16 } as const

export const SOURCE: Readonly<Record<NftFamily, TypeofField>> = {
  ip: header(datatypes.PROTO_DESC_IP, datatypes.IPHDR_SADDR, ADDRESS_4),
  ip6: header(datatypes.PROTO_DESC_IP6, datatypes.IP6HDR_SADDR, ADDRESS_6),
}

export const DESTINATION: Readonly<Record<NftFamily, TypeofField>> = {
  ip: header(datatypes.PROTO_DESC_IP, datatypes.IPHDR_DADDR, ADDRESS_4),
  ip6: header(datatypes.PROTO_DESC_IP6, datatypes.IP6HDR_DADDR, ADDRESS_6),
}

function port(desc: number): TypeofField {
  return header(desc, datatypes.THDR_DPORT, { type: datatypes.TYPE_INET_SERVICE, length: 2 })
}

export const DESTINATION_PORT = port(datatypes.PROTO_DESC_TH)

/** `tcp dport` and the like. nft turns a rule that looks one up, or has it as data, into a rule of that protocol. */
export const DESTINATION_PORTS: Readonly<Record<'TCP' | 'UDP' | 'SCTP', TypeofField>> = {
  TCP: port(datatypes.PROTO_DESC_TCP),
  UDP: port(datatypes.PROTO_DESC_UDP),
  SCTP: port(datatypes.PROTO_DESC_SCTP),
}

export const PROTOCOL: TypeofField = {
  type: datatypes.TYPE_INET_PROTOCOL,
  length: 1,
  byteOrder: datatypes.BYTEORDER_HOST_ENDIAN,
  expression: expression(datatypes.EXPR_META, numbers(nft.NFT_META_L4PROTO)),
}

export const PRIORITY: TypeofField = {
  type: datatypes.TYPE_CLASSID,
  length: 4,
  byteOrder: datatypes.BYTEORDER_HOST_ENDIAN,
  expression: expression(datatypes.EXPR_META, numbers(nft.NFT_META_PRIORITY)),
}

/** `numgen random mod 65536`; a lookup with any other modulus fits, too. */
export const RANDOM: TypeofField = {
  type: datatypes.TYPE_INTEGER,
  length: 4,
  byteOrder: datatypes.BYTEORDER_HOST_ENDIAN,
  expression: expression(datatypes.EXPR_NUMGEN, numbers(nft.NFT_NG_RANDOM, 65_536, 0)),
}

/** `@nh,OFFSET,LENGTH`: bytes of a header that are not a named field. */
export function rawPayload(base: number, offset: number, length: number): TypeofField {
  return {
    type: datatypes.TYPE_INTEGER,
    length,
    byteOrder: datatypes.BYTEORDER_BIG_ENDIAN,
    expression: expression(datatypes.EXPR_PAYLOAD, numbers(0, 0, base, offset * 8, length * 8)),
  }
}

/** Returns whether two sets' userdata mean the same to nft. */
export function sameUserdata(a: Octets, b: Octets): boolean {
  return a === b || described(a) === described(b)
}

/** Replaces descriptions of no field by one form of them: nft 1.0.6 writes an empty concatenation, 1.1.3 a broken one. */
function described(userdata: Octets): Octets {
  return encodeUserdata(
    decodeUserdata(userdata).map(item =>
      isTypeof(item) && isBare(item.value) ? { ...item, value: '' } : item,
    ),
  )
}

function isTypeof({ type }: UserdataItem): boolean {
  return type === datatypes.NFTNL_UDATA_SET_KEY_TYPEOF || type === datatypes.NFTNL_UDATA_SET_DATA_TYPEOF
}

function isBare(description: Octets): boolean {
  const [kind, fields] = decodeUserdata(description)
  if (kind?.value !== u32host(datatypes.EXPR_CONCAT) || fields === undefined) return false
  return (decodeUserdata(fields.value)[0]?.value ?? '') === ''
}

interface SetTypes {
  readonly size: number
  readonly key: readonly TypeofField[]
  /** For maps only. */
  readonly data?: readonly TypeofField[] | 'verdict'
  /** Gives nft only the types, for fields with fixed lengths: nft cannot parse a rule with `th dport` as data. */
  readonly bare?: boolean
}

/** Creates a set, or with `data` a map, whose nft listing nft can parse. */
export function typedSet(name: string, { size, key, data, bare = false }: SetTypes): NftSet {
  const set = { name, keyType: typeOf(key), keyLength: lengthOf(key), size, timeoutMs: 0 }
  const keyOrder = { type: datatypes.NFTNL_UDATA_SET_KEYBYTEORDER, value: u32host(byteOrderOf(key)) }
  const keyTypeof = { type: datatypes.NFTNL_UDATA_SET_KEY_TYPEOF, value: typeofOf(key, bare) }
  if (data === undefined) {
    const userdata = encodeUserdata([keyOrder, keyTypeof])
    return { ...set, flags: 0, dataType: undefined, dataLength: undefined, userdata }
  }
  const isVerdict = data === 'verdict'
  const dataOrder = isVerdict ? datatypes.BYTEORDER_INVALID : byteOrderOf(data)
  const dataTypeof = isVerdict ? expression(datatypes.EXPR_VERDICT, '') : typeofOf(data, bare)
  return {
    ...set,
    flags: nft.NFT_SET_MAP,
    dataType: isVerdict ? nft.NFT_DATA_VERDICT : typeOf(data),
    dataLength: isVerdict ? undefined : lengthOf(data),
    userdata: encodeUserdata([
      keyOrder,
      { type: datatypes.NFTNL_UDATA_SET_DATABYTEORDER, value: u32host(dataOrder) },
      keyTypeof,
      { type: datatypes.NFTNL_UDATA_SET_DATA_TYPEOF, value: dataTypeof },
      { type: datatypes.NFTNL_UDATA_SET_DATA_INTERVAL, value: u32host(0) },
    ]),
  }
}

function typeOf(fields: readonly TypeofField[]): number {
  return datatypes.concatenatedType(...fields.map(({ type }) => type))
}

/** Each field of a concatenation fills whole registers; a single field does not. */
function lengthOf(fields: readonly TypeofField[]): number {
  if (fields.length === 1) return fields[0]?.length ?? 0
  return fields.reduce((sum, { length }) => sum + Math.ceil(length / 4) * 4, 0)
}

function byteOrderOf(fields: readonly TypeofField[]): number {
  return fields.length === 1
    ? (fields[0]?.byteOrder ?? datatypes.BYTEORDER_INVALID)
    : datatypes.BYTEORDER_INVALID
}

function typeofOf(fields: readonly TypeofField[], bare: boolean): Octets {
  const [first, ...more] = fields
  if (bare) return expression(datatypes.EXPR_CONCAT, '')
  if (first !== undefined && more.length === 0) return first.expression
  return expression(datatypes.EXPR_CONCAT, inOrder(fields.map(({ expression: member }) => member)))
}
