import { bytesFromOctets, cString, type Octets, octetsFromBytes } from '../../base/octets.ts'
import { unencodable } from '../../netlink/errors.ts'
import { NFT_USERDATA_MAXLEN } from './constants.ts'

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
  if (isTooLong || octets.length > NFT_USERDATA_MAXLEN)
    throw unencodable(`userdata of ${octets.length} bytes is longer than ${NFT_USERDATA_MAXLEN}`)
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
