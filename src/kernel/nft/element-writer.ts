import type { Octets } from '../../base/octets.ts'
import type { AttributeWriter } from '../../netlink/attribute.ts'
import type { ByteWriter } from '../../netlink/bytes.ts'
import { NLA_F_NESTED } from '../../netlink/constants.ts'
import { type ValuesOf, writeAttributes } from '../../netlink/schema.ts'
import {
  NFTA_DATA_VALUE,
  NFTA_DATA_VERDICT,
  NFTA_LIST_ELEM,
  NFTA_SET_ELEM_DATA,
  NFTA_SET_ELEM_KEY,
  NFTA_SET_ELEM_USERDATA,
  NFTA_VERDICT_CHAIN,
  NFTA_VERDICT_CODE,
} from './constants.ts'
import { NFTNL_UDATA_SET_ELEM_COMMENT } from './datatypes.ts'
import { dataAttributes } from './expression-attributes.ts'
import { SET_ELEMENT } from './schema.ts'
import type { Element, NftSet, Verdict } from './state.ts'
import { commentUserdata } from './userdata.ts'

/** No element is longer: key and data 64 bytes each, a chain's name and userdata 256 each, and their headers. */
export const ELEMENT_BYTES_MAX = 768
/** What the straight-line writer takes; whatever is longer goes through the tables, which know every limit. */
const VALUE_LENGTH_MAX = 64
const TEXT_LENGTH_MAX = 250

const ELEMENT = NFTA_LIST_ELEM | NLA_F_NESTED
const KEY = NFTA_SET_ELEM_KEY | NLA_F_NESTED
const DATA = NFTA_SET_ELEM_DATA | NLA_F_NESTED
const VERDICT = NFTA_DATA_VERDICT | NLA_F_NESTED

/**
 * Appends one element of NFTA_SET_ELEM_LIST_ELEMENTS. A full load writes a hundred thousand of them, so the usual
 * shapes are written in a straight line; a property test holds this against writeElementByTable.
 */
export function writeElement(out: AttributeWriter, set: NftSet, element: Element): void {
  if (isUsual(element)) writeUsualElement(out.out, element)
  else writeElementByTable(out, set, element)
}

function writeUsualElement(bytes: ByteWriter, element: Element): void {
  bytes.reserve(ELEMENT_BYTES_MAX)
  const start = bytes.length
  bytes.length += 4
  writeNestedValue(bytes, KEY, element.key)
  if (typeof element.data === 'string') writeNestedValue(bytes, DATA, element.data)
  else if (element.data !== undefined) writeVerdict(bytes, element.data)
  if (element.comment !== '') writeComment(bytes, element.comment)
  writeHeader(bytes, start, bytes.length - start, ELEMENT)
}

/** Appends the key of an element to delete. */
export function writeElementKey(out: AttributeWriter, key: Octets): void {
  out.openNest(NFTA_LIST_ELEM)
  writeAttributes(out, SET_ELEMENT, { key: { value: key } })
  out.close()
}

/** As writeElement, through the attribute table. */
export function writeElementByTable(out: AttributeWriter, set: NftSet, element: Element): void {
  out.openNest(NFTA_LIST_ELEM)
  writeAttributes(out, SET_ELEMENT, elementAttributes(set, element))
  out.close()
}

function elementAttributes(set: NftSet, element: Element): ValuesOf<typeof SET_ELEMENT> {
  const { key, data, comment, expiresMs = 0 } = element
  return {
    key: { value: key },
    data: data === undefined ? undefined : dataAttributes(data),
    // An expiration needs a timeout that is not shorter: the set's, or else one of the element's own.
    timeout: expiresMs > set.timeoutMs ? BigInt(expiresMs) : undefined,
    expiration: expiresMs > 0 ? BigInt(expiresMs) : undefined,
    userdata: commentUserdata(NFTNL_UDATA_SET_ELEM_COMMENT, comment),
  }
}

function isUsual({ key, data, comment, expiresMs = 0 }: Element): boolean {
  return expiresMs === 0 && key.length <= VALUE_LENGTH_MAX && isShort(data) && isShortAscii(comment)
}

function isShort(data: Element['data']): boolean {
  if (data === undefined) return true
  if (typeof data === 'string') return data.length <= VALUE_LENGTH_MAX
  return data.chain === undefined || isShortAscii(data.chain)
}

function isShortAscii(text: string): boolean {
  if (text.length > TEXT_LENGTH_MAX) return false
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i)
    if (code === 0 || code > 0x7f) return false
  }
  return true
}

// From here on there is room for ELEMENT_BYTES_MAX bytes, so that none of these has to look.

function writeHeader(out: ByteWriter, at: number, length: number, type: number): void {
  out.view.setUint32(at, (type << 16) | length, true)
}

function writeNestedValue(out: ByteWriter, type: number, value: Octets): void {
  const start = out.length
  out.length = writePadded(out.bytes, start + 8, value)
  writeHeader(out, start, out.length - start, type)
  writeHeader(out, start + 4, 4 + value.length, NFTA_DATA_VALUE)
}

function writeVerdict(out: ByteWriter, { code, chain }: Verdict): void {
  const start = out.length
  writeHeader(out, start + 8, 8, NFTA_VERDICT_CODE)
  out.view.setInt32(start + 12, code)
  let end = start + 16
  if (chain !== undefined) {
    writeHeader(out, end, 5 + chain.length, NFTA_VERDICT_CHAIN)
    end = writePaddedText(out.bytes, end + 4, chain)
  }
  writeHeader(out, start, end - start, DATA)
  writeHeader(out, start + 4, end - start - 4, VERDICT)
  out.length = end
}

function writeComment(out: ByteWriter, comment: string): void {
  const start = out.length
  writeHeader(out, start, 7 + comment.length, NFTA_SET_ELEM_USERDATA)
  out.bytes[start + 4] = NFTNL_UDATA_SET_ELEM_COMMENT
  out.bytes[start + 5] = comment.length + 1
  out.length = writePaddedText(out.bytes, start + 6, comment)
}

/** Gives the first position after `value` and its padding. */
function writePadded(bytes: Uint8Array, start: number, value: Octets): number {
  let at = start
  for (let i = 0; i < value.length; i++) bytes[at++] = value.charCodeAt(i)
  while ((at & 3) !== 0) bytes[at++] = 0
  return at
}

function writePaddedText(bytes: Uint8Array, start: number, text: string): number {
  let at = start
  for (let i = 0; i < text.length; i++) bytes[at++] = text.charCodeAt(i)
  bytes[at++] = 0
  while ((at & 3) !== 0) bytes[at++] = 0
  return at
}
