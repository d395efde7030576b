import { WireError } from '../base/errors.ts'
import { Rest } from '../base/octets.ts'

const NEWLINE = 0x0a
const QUOTE = 0x22
const COMMA = 0x2c
const COLON = 0x3a
const OPEN_BRACKET = 0x5b
const BACKSLASH = 0x5c
const CLOSE_BRACKET = 0x5d
const OPEN_BRACE = 0x7b
const CLOSE_BRACE = 0x7d
const BYTE_ORDER_MARK = 0xefbbbf

export function isBlank(byte: number): boolean {
  return byte === 0x20 || byte === NEWLINE || byte === 0x0d || byte === 0x09
}

/** `line` counts from 1. */
export class JsonTextError extends WireError {
  readonly line: number

  constructor(message: string, line: number, cause?: unknown) {
    super(message, { cause })
    this.line = line
  }
}

interface JsonPart {
  readonly kind: /** An element of the `items` of the document that ends next. */
    | 'item'
    /** A top-level object; its `items` are empty here, because they came before it. */
    | 'document'
  /** One object, if it is JSON. Valid until the next part. */
  readonly bytes: Buffer
  /** The line on which it begins, from 1. */
  readonly line: number
}

const ITEMS = 'items'
const ROOM = 1024

/**
 * Takes JSON apart while it arrives, so that a List of tens of thousands of objects is never held whole. Finds the borders
 * of top-level objects, and of the elements of their `items`, each of which is to be parsed by itself.
 */
export class JsonItems {
  readonly #bytesMax: number
  readonly #rest = new Rest()
  #atStart = true
  /** The line of the next byte, or of the current item. */
  #line = 1
  #documentLine = 1
  /** The current document without its items. */
  #kept = Buffer.allocUnsafe(ROOM)
  #length = 0
  #depth = 0
  #inString = false
  #isEscaped = false
  /** The current or last string at the top, as far as it matters. */
  #string = ''
  /** The key at the top whose value comes next. */
  #key = ''
  /** The token that may come next between the items; undefined outside. */
  #next: 'item' | 'item or end' | 'comma or end' | undefined
  /** Brackets that are open in the current item; 0 between items. */
  #open = 0
  #inItemString = false
  /** Scanned bytes of the rest, which begins with the current item; one more when the next byte is escaped. */
  #scanned = 0

  /** `bytesMax` limits an item, and a document without its items. */
  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax
  }

  /** The bytes of the document so far without its items: all of them, or so many that it is JSON up to here. */
  get envelope(): Buffer {
    const text = this.#kept.subarray(0, this.#length)
    return this.#next === undefined ? text : Buffer.concat([text, Buffer.from([CLOSE_BRACKET, CLOSE_BRACE])])
  }

  /** Gives the line on which an unfinished document began, and the line of the next byte. */
  get unfinished(): { readonly from: number; readonly at: number } | undefined {
    if (this.#depth === 0) return undefined
    return { from: this.#documentLine, at: this.#line + newlinesIn(this.#rest.with(new Uint8Array(0))) }
  }

  /**
   * Gives the parts that end within `piece`, which may be reused afterwards. Must be read to its end. Throws
   * JsonTextError.
   */
  *push(piece: Uint8Array): Generator<JsonPart> {
    const bytes = this.#rest.with(piece)
    let start = 0
    let at = this.#scanned
    if (this.#atStart && bytes.length >= 3 && bytes.readUIntBE(0, 3) === BYTE_ORDER_MARK) at = 3
    this.#atStart = false
    while (at < bytes.length) {
      if (this.#open === 0) at = start = this.#scanFrame(bytes, at)
      if (this.#depth === 0 && this.#length > 0) {
        yield { kind: 'document', bytes: this.envelope, line: this.#documentLine }
        this.#length = 0
        continue
      }
      at = this.#scanItem(bytes, at, start)
      if (this.#open > 0) break
      if (at > start) yield this.#item(bytes.subarray(start, at))
      start = at
    }
    this.#bound(bytes.length - start)
    this.#rest.leave(bytes, start)
    this.#scanned = at - start
  }

  #item(bytes: Buffer): JsonPart {
    this.#bound(bytes.length)
    const line = this.#line
    this.#line += newlinesIn(bytes)
    return { kind: 'item', bytes, line }
  }

  #bound(length: number): void {
    const max = this.#bytesMax
    if (length > max) throw new JsonTextError(`an object of more than ${max} bytes`, this.#line)
  }

  /** Gives the index of the bracket that opens an item, the one behind a document, or the end. */
  #scanFrame(bytes: Buffer, start: number): number {
    for (let at = start; at < bytes.length; at++) {
      const byte = bytes[at] ?? 0
      if (this.#inString) this.#withinString(byte)
      else if (this.#next === undefined) {
        this.#outside(byte)
        if (this.#depth === 0 && this.#length > 0) return at + 1
      } else if (byte === OPEN_BRACE && this.#next !== 'comma or end') {
        this.#next = 'comma or end'
        return at
      } else this.#betweenItems(byte)
      if (byte === NEWLINE) this.#line++
    }
    return bytes.length
  }

  #withinString(byte: number): void {
    this.#keep(byte)
    if (this.#isEscaped) this.#isEscaped = false
    else if (byte === BACKSLASH) this.#isEscaped = true
    else if (byte === NEWLINE) throw new JsonTextError(UNCLOSED, this.#line)
    else if (byte === QUOTE) this.#inString = false
    if (this.#inString && this.#string.length <= ITEMS.length) this.#string += String.fromCharCode(byte)
  }

  #outside(byte: number): void {
    if (this.#depth === 0) {
      if (isBlank(byte)) return
      if (byte !== OPEN_BRACE) throw new JsonTextError('expected an object, which begins with {', this.#line)
      this.#documentLine = this.#line
      this.#key = ''
      this.#string = ''
    }
    this.#keep(byte)
    if (byte === QUOTE) {
      this.#inString = true
      this.#string = ''
    } else if (byte === OPEN_BRACE || byte === OPEN_BRACKET) {
      this.#depth++
      if (byte === OPEN_BRACKET && this.#depth === 2 && this.#key === ITEMS) this.#next = 'item or end'
    } else if (byte === CLOSE_BRACE || byte === CLOSE_BRACKET) this.#depth--
    else if (this.#depth === 1 && byte === COLON) this.#key = this.#string
    else if (this.#depth === 1 && byte === COMMA) this.#key = ''
  }

  #betweenItems(byte: number): void {
    if (byte === CLOSE_BRACKET && this.#next !== 'item') {
      this.#keep(byte)
      this.#depth--
      this.#next = undefined
    } else if (byte === COMMA && this.#next === 'comma or end') this.#next = 'item'
    else if (!isBlank(byte)) throw new JsonTextError('expected an object, a comma or ] in items', this.#line)
  }

  #keep(byte: number): void {
    const max = this.#bytesMax
    if (this.#length >= max)
      throw new JsonTextError(`an object of more than ${max} bytes without its items`, this.#documentLine)
    if (this.#length === this.#kept.length) this.#kept = Buffer.concat([this.#kept], 2 * this.#length)
    this.#kept[this.#length++] = byte
  }

  /** Gives the index behind the bracket that closes the item that begins at `item`, or the end. */
  #scanItem(bytes: Buffer, start: number, item: number): number {
    let at = start
    let open = this.#open
    let inString = this.#inItemString
    for (; at < bytes.length; at++) {
      const byte = bytes[at]
      if (inString) {
        if (byte === QUOTE) inString = false
        else if (byte === BACKSLASH) at++
        else if (byte === NEWLINE)
          throw new JsonTextError(UNCLOSED, this.#line + newlinesIn(bytes.subarray(item, at)))
      } else if (byte === QUOTE) inString = true
      else if (byte === OPEN_BRACE || byte === OPEN_BRACKET) open++
      else if ((byte === CLOSE_BRACE || byte === CLOSE_BRACKET) && --open === 0) {
        at++
        break
      }
    }
    this.#open = open
    this.#inItemString = inString
    return at
  }
}

const UNCLOSED = 'a string is not closed on its line'

function newlinesIn(bytes: Buffer): number {
  let count = 0
  for (let at = bytes.indexOf(NEWLINE); at >= 0; at = bytes.indexOf(NEWLINE, at + 1)) count++
  return count
}
