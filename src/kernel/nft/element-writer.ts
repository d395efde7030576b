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
  if (!writeUsualElement(out.out, element)) writeElementByTable(out, set, element)
}

/** Writes nothing, and gives false, for an element that is not of the usual shapes. */
function writeUsualElement(out: ByteWriter, element: Element): boolean {
  const { key, data, comment } = element
  if (key.length > VALUE_LENGTH_MAX || comment.length > TEXT_LENGTH_MAX || (element.expiresMs ?? 0) !== 0)
    return false
  out.reserve(ELEMENT_BYTES_MAX)
  const start = out.length
  let end = writeNestedValue(out, start + 4, KEY, key)
  if (typeof data === 'string')
    end = data.length > VALUE_LENGTH_MAX ? NOT_USUAL : writeNestedValue(out, end, DATA, data)
  else if (data !== undefined) end = writeVerdict(out, end, data)
  if (end >= 0 && comment !== '') end = writeComment(out, end, comment)
  if (end < 0) return false
  writeHeader(out, start, end - start, ELEMENT)
  out.length = end
  return true
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

/*
 * From here on there is room for ELEMENT_BYTES_MAX bytes, so that none of these has to look. Each writes at a position
 * and gives the one after it, or NOT_USUAL.
 */

const NOT_USUAL = -1

function writeHeader(out: ByteWriter, at: number, length: number, type: number): void {
  out.view.setUint32(at, (type << 16) | length, true)
}

/** A nest with one NFTA_DATA_VALUE. */
function writeNestedValue(out: ByteWriter, start: number, type: number, value: Octets): number {
  const { bytes } = out
  let at = start + 8
  for (let i = 0; i < value.length; i++) bytes[at++] = value.charCodeAt(i)
  while ((at & 3) !== 0) bytes[at++] = 0
  writeHeader(out, start, at - start, type)
  writeHeader(out, start + 4, 4 + value.length, NFTA_DATA_VALUE)
  return at
}

function writeVerdict(out: ByteWriter, start: number, { code, chain }: Verdict): number {
  writeHeader(out, start + 8, 8, NFTA_VERDICT_CODE)
  out.view.setInt32(start + 12, code)
  let end = start + 16
  if (chain !== undefined) {
    if (chain.length > TEXT_LENGTH_MAX) return NOT_USUAL
    writeHeader(out, end, 5 + chain.length, NFTA_VERDICT_CHAIN)
    end = writeText(out.bytes, end + 4, chain)
    if (end < 0) return NOT_USUAL
  }
  writeHeader(out, start, end - start, DATA)
  writeHeader(out, start + 4, end - start - 4, VERDICT)
  return end
}

function writeComment(out: ByteWriter, start: number, comment: string): number {
  writeHeader(out, start, 7 + comment.length, NFTA_SET_ELEM_USERDATA)
  out.bytes[start + 4] = NFTNL_UDATA_SET_ELEM_COMMENT
  out.bytes[start + 5] = comment.length + 1
  return writeText(out.bytes, start + 6, comment)
}

/** ASCII without NULs, its NUL and padding; anything else is not usual. */
function writeText(bytes: Uint8Array, start: number, text: string): number {
  let at = start
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i)
    if (code === 0 || code > 0x7f) return NOT_USUAL
    bytes[at++] = code
  }
  bytes[at++] = 0
  while ((at & 3) !== 0) bytes[at++] = 0
  return at
}
