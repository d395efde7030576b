import { type Octets, octetsFromBytes, u32host } from '../../base/octets.ts'
import { AttributeWriter } from '../../netlink/attribute.ts'
import { ByteWriter } from '../../netlink/bytes.ts'
import { NLA_F_NESTED } from '../../netlink/constants.ts'
import { type ValuesOf, writeAttributes } from '../../netlink/schema.ts'
import {
  NFTA_DATA_VALUE,
  NFTA_LIST_ELEM,
  NFTA_SET_ELEM_DATA,
  NFTA_SET_ELEM_KEY,
  NFTA_SET_ELEM_USERDATA,
} from './constants.ts'
import { NFTNL_UDATA_SET_ELEM_COMMENT } from './datatypes.ts'
import { dataAttributes } from './expression-attributes.ts'
import { SET_ELEMENT } from './schema.ts'
import type { Element, NftSet } from './state.ts'
import { commentUserdata } from './userdata.ts'

/** What frames take; whatever is longer goes through the tables, which know every limit. */
const VALUE_LENGTH_MAX = 64
const TEXT_LENGTH_MAX = 250
const NO_DATA = -1
const UNUSUAL_TEXT = /[^ -~]/

/** What stands around the key, data and comment of elements of which each has the same length. */
interface Frame {
  readonly keyLength: number
  /** NO_DATA without data. */
  readonly dataLength: number
  readonly commentLength: number
  readonly beforeKey: Octets
  readonly beforeData: Octets
  readonly beforeComment: Octets
  readonly end: Octets
}

/**
 * Makes the items of NFTA_SET_ELEM_LIST_ELEMENTS for one batch. A full load takes a hundred thousand of them, which
 * differ in little but their values: the rest is made once for each combination of lengths. Octets are joined and not
 * written byte by byte, because the engine does that at full speed from the first element on. A property test holds
 * this against elementByTable.
 */
export class ElementWriter {
  readonly #frames = new Map<number, Frame>()
  #last: Frame | undefined

  /** Throws NetlinkError for a value that does not fit its attribute. */
  element(set: NftSet, element: Element): Octets {
    const { key, data, comment } = element
    if (isUnusual(element) || typeof data === 'object') return elementByTable(set, element)
    const dataLength = data === undefined ? NO_DATA : data.length
    const { length } = comment
    const last = this.#last
    const fits =
      last?.keyLength === key.length && last.dataLength === dataLength && last.commentLength === length
    const frame = fits ? last : this.#frame(key.length, dataLength, length)
    let octets = frame.beforeKey + key
    if (data !== undefined) octets = octets + frame.beforeData + data
    if (length > 0) octets = octets + frame.beforeComment + comment
    return frame.end === '' ? octets : octets + frame.end
  }

  /** An element to delete. */
  key(key: Octets): Octets {
    if (key.length > VALUE_LENGTH_MAX) return itemByTable({ key: { value: key } })
    const frame = this.#frame(key.length, NO_DATA, 0)
    return frame.beforeKey + key + frame.end
  }

  #frame(keyLength: number, dataLength: number, commentLength: number): Frame {
    const code = (keyLength << 16) | ((dataLength + 1) << 8) | commentLength
    let frame = this.#frames.get(code)
    if (frame === undefined) {
      frame = makeFrame(keyLength, dataLength, commentLength)
      this.#frames.set(code, frame)
    }
    this.#last = frame
    return frame
  }
}

function isUnusual({ key, data, comment, expiresMs }: Element): boolean {
  if (key.length > VALUE_LENGTH_MAX || (expiresMs !== undefined && expiresMs !== 0)) return true
  if (typeof data === 'string' && data.length > VALUE_LENGTH_MAX) return true
  return comment !== '' && (comment.length > TEXT_LENGTH_MAX || UNUSUAL_TEXT.test(comment))
}

function makeFrame(keyLength: number, dataLength: number, commentLength: number): Frame {
  const hasData = dataLength !== NO_DATA
  const padding = '\0\0\0'
  const keyPadding = padding.slice(0, -keyLength & 3)
  const dataPadding = hasData ? padding.slice(0, -dataLength & 3) : ''
  // A type and a length before the text, a NUL after it.
  const userdataLength = 4 + 2 + commentLength + 1
  const commentEnd = commentLength === 0 ? '' : `\0${padding.slice(0, -userdataLength & 3)}`
  const keyBytes = 8 + keyLength + keyPadding.length
  const dataBytes = hasData ? 8 + dataLength + dataPadding.length : 0
  const commentBytes = commentLength === 0 ? 0 : userdataLength - 1 + commentEnd.length
  const beforeComment = header(NFTA_SET_ELEM_USERDATA, userdataLength) + commentHeader(commentLength)
  const afterData = hasData ? dataPadding : keyPadding
  return {
    keyLength,
    dataLength,
    commentLength,
    beforeKey:
      header(NFTA_LIST_ELEM | NLA_F_NESTED, 4 + keyBytes + dataBytes + commentBytes) +
      valueHeaders(NFTA_SET_ELEM_KEY, keyBytes, keyLength),
    beforeData: hasData ? keyPadding + valueHeaders(NFTA_SET_ELEM_DATA, dataBytes, dataLength) : '',
    beforeComment: commentLength === 0 ? '' : afterData + beforeComment,
    end: commentLength === 0 ? afterData : commentEnd,
  }
}

/** Of a nest with one NFTA_DATA_VALUE. */
function valueHeaders(type: number, length: number, valueLength: number): Octets {
  return header(type | NLA_F_NESTED, length) + header(NFTA_DATA_VALUE, 4 + valueLength)
}

function commentHeader(length: number): Octets {
  return String.fromCharCode(NFTNL_UDATA_SET_ELEM_COMMENT, length + 1)
}

function header(type: number, length: number): Octets {
  return u32host((type << 16) | length)
}

/** As ElementWriter.element, through the attribute table. */
export function elementByTable(set: NftSet, element: Element): Octets {
  const { key, data, comment, expiresMs = 0 } = element
  return itemByTable({
    key: { value: key },
    data: data === undefined ? undefined : dataAttributes(data),
    // An expiration needs a timeout that is not shorter: the set's, or else one of the element's own.
    timeout: expiresMs > set.timeoutMs ? BigInt(expiresMs) : undefined,
    expiration: expiresMs > 0 ? BigInt(expiresMs) : undefined,
    userdata: commentUserdata(NFTNL_UDATA_SET_ELEM_COMMENT, comment),
  })
}

function itemByTable(attributes: ValuesOf<typeof SET_ELEMENT>): Octets {
  const out = new AttributeWriter(new ByteWriter(256))
  out.openNest(NFTA_LIST_ELEM)
  writeAttributes(out, SET_ELEMENT, attributes)
  out.close()
  return octetsFromBytes(out.out.written())
}
