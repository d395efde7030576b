import type { Octets } from '../../base/octets.ts'
import type { AttributeWriter } from '../../netlink/attribute.ts'
import type { ByteWriter } from '../../netlink/bytes.ts'
import { NLA_F_NESTED } from '../../netlink/constants.ts'
import type { Writer } from '../../netlink/flat-writer.ts'
import { type SourcesOf, writerOf } from '../../netlink/schema.ts'
import {
  NFTA_DATA_VALUE,
  NFTA_LIST_ELEM,
  NFTA_SET_ELEM_DATA,
  NFTA_SET_ELEM_KEY,
  NFTA_SET_ELEM_USERDATA,
} from './constants.ts'
import { NFTNL_UDATA_SET_ELEM_COMMENT } from './datatypes.ts'
import { LIST_ELEMENT, type SET_ELEMENT } from './schema.ts'
import type { Element, NftSet } from './state.ts'
import { commentUserdata } from './userdata.ts'

/**
 * Maximum length of an element: key and data 64 bytes each, a chain's name and userdata 256 each, and their headers.
 */
export const ELEMENT_BYTES_MAX = 768

/** Maximum length for the fast writer; longer values use the attribute tables, which check every limit. */
const VALUE_LENGTH_MAX = 64
const TEXT_LENGTH_MAX = 250

/** Attribute headers without their lengths, as words. */
const ITEM = (NFTA_LIST_ELEM | NLA_F_NESTED) << 16
const KEY = (NFTA_SET_ELEM_KEY | NLA_F_NESTED) << 16
const DATA = (NFTA_SET_ELEM_DATA | NLA_F_NESTED) << 16
const VALUE = NFTA_DATA_VALUE << 16
const USERDATA = NFTA_SET_ELEM_USERDATA << 16

const ELEMENT: SourcesOf<typeof SET_ELEMENT, Element> = {
  key: { value: ({ key }) => key },
  data: {
    value: ({ data }) => (typeof data === 'string' ? data : undefined),
    verdict: {
      code: ({ data }) => (typeof data === 'object' ? data.code : undefined),
      chain: ({ data }) => (typeof data === 'object' ? data.chain : undefined),
    },
  },
  userdata: ({ comment }) => commentUserdata(NFTNL_UDATA_SET_ELEM_COMMENT, comment),
}

const writeLasting: Writer<Element> = writerOf(LIST_ELEMENT, { element: ELEMENT })

interface Expiring extends Element {
  readonly expiresMs: number
  /** The timeout of the element's set. */
  readonly timeoutMs: number
}
const writeExpiring: Writer<Expiring> = writerOf(LIST_ELEMENT, {
  element: {
    ...ELEMENT,
    // An expiration needs a timeout of at least its length: the set's, or otherwise one of the element's own.
    timeout: ({ expiresMs, timeoutMs }) => (expiresMs > timeoutMs ? BigInt(expiresMs) : undefined),
    expiration: ({ expiresMs }) => BigInt(expiresMs),
  },
})

/**
 * Appends one element of NFTA_SET_ELEM_LIST_ELEMENTS. A full load writes a hundred thousand elements, most of them
 * before the JIT compiler has optimized the code, so common shapes are written without the tables (decision 0001 has
 * the figures).
 */
export function writeElement(out: AttributeWriter, set: NftSet, element: Element): void {
  if (!writeUsualElement(out.out, element)) writeElementByTable(out, set, element)
}

/** Appends one element as writeElement does, but only with the attribute tables. */
export function writeElementByTable(out: AttributeWriter, { timeoutMs }: NftSet, element: Element): void {
  const { expiresMs = 0 } = element
  if (expiresMs > 0) writeExpiring(out, { ...element, expiresMs, timeoutMs })
  else writeLasting(out, element)
}

/** Writes nothing and returns false for an element without a common shape. */
function writeUsualElement(out: ByteWriter, element: Element): boolean {
  const { key, data, comment, expiresMs } = element
  if (typeof data === 'object' || (expiresMs !== undefined && expiresMs !== 0)) return false
  const keyLength = key.length
  const dataLength = data === undefined ? 0 : data.length
  if (keyLength > VALUE_LENGTH_MAX || dataLength > VALUE_LENGTH_MAX) return false
  const start = out.length
  if (out.bytes.length - start < ELEMENT_BYTES_MAX) out.reserve(ELEMENT_BYTES_MAX)
  const { bytes, words } = out
  const head = start >> 2
  words[head + 1] = KEY | (8 + ((keyLength + 3) & ~3))
  words[head + 2] = VALUE | (4 + keyLength)
  let at = start + 12
  for (let i = 0; i < keyLength; i++) bytes[at++] = key.charCodeAt(i)
  while ((at & 3) !== 0) bytes[at++] = 0
  if (data !== undefined) {
    words[at >> 2] = DATA | (8 + ((dataLength + 3) & ~3))
    words[(at >> 2) + 1] = VALUE | (4 + dataLength)
    at += 8
    for (let i = 0; i < dataLength; i++) bytes[at++] = data.charCodeAt(i)
    while ((at & 3) !== 0) bytes[at++] = 0
  }
  if (comment !== '') at = writeComment(out, at, comment)
  if (at === NOT_USUAL) return false
  words[head] = ITEM | (at - start)
  out.length = at
  return true
}

const NOT_USUAL = -1

/**
 * Returns the position after the comment, or NOT_USUAL for text with a NUL or non-ASCII characters, which the table
 * writes.
 */
function writeComment(out: ByteWriter, start: number, comment: string): number {
  const { length } = comment
  if (length > TEXT_LENGTH_MAX) return NOT_USUAL
  const { bytes } = out
  out.words[start >> 2] = USERDATA | (7 + length)
  bytes[start + 4] = NFTNL_UDATA_SET_ELEM_COMMENT
  bytes[start + 5] = length + 1
  let at = start + 6
  for (let i = 0; i < length; i++) {
    const code = comment.charCodeAt(i)
    if (code === 0 || code > 0x7f) return NOT_USUAL
    bytes[at++] = code
  }
  bytes[at++] = 0
  while ((at & 3) !== 0) bytes[at++] = 0
  return at
}

/** Appends the key of an element to delete. */
export const writeElementKey: Writer<Octets> = writerOf(LIST_ELEMENT, {
  element: { key: { value: key => key } },
})
