import { WireError } from '../../../wire/wire-error.ts'
import { isMessage, type Message } from './message.ts'

const TAB = 0x09
export const NEWLINE = 0x0a
const RETURN = 0x0d
const SPACE = 0x20
export const QUOTE = 0x22
const COMMA = 0x2c
const COLON = 0x3a
export const OPEN_BRACKET = 0x5b
export const BACKSLASH = 0x5c
export const CLOSE_BRACKET = 0x5d
export const OPEN_BRACE = 0x7b
export const CLOSE_BRACE = 0x7d

export function isBlank(byte: number): boolean {
  return byte === SPACE || byte === NEWLINE || byte === RETURN || byte === TAB
}

const ITEMS = 'items'
const ROOM = 1024

/** A list without what stands between the brackets of its `items`: passes over it, and keeps it to be parsed. */
export class JsonFrame {
  readonly #bytesMax: number
  #kept = Buffer.allocUnsafe(ROOM)
  #length = 0
  #depth = 0
  #inString = false
  #isEscaped = false
  /** The current or last string at the top, as far as it matters. */
  #string = ''
  /** The key at the top whose value comes next. */
  #key = ''
  /** What may come next between the items; undefined outside. */
  #next: 'item' | 'item or end' | 'comma or end' | undefined

  constructor(bytesMax: number) {
    this.#bytesMax = bytesMax
  }

  get isClosed(): boolean {
    return this.#length > 0 && this.#depth === 0
  }

  /** The bytes of the list without its items: all of them, or so many that it is JSON up to here. */
  text(): Buffer {
    const text = this.#kept.subarray(0, this.#length)
    return this.#next === undefined ? text : Buffer.concat([text, Buffer.from([CLOSE_BRACKET, CLOSE_BRACE])])
  }

  /** Takes bytes from `start` on; gives the index of the bracket that opens an item, or the end. Throws WireError. */
  scan(bytes: Buffer, start: number): number {
    for (let at = start; at < bytes.length; at++) {
      const byte = bytes[at] ?? 0
      if (this.#inString) this.#withinString(byte)
      else if (this.#next === undefined) this.#outside(byte)
      else if (byte === OPEN_BRACE && this.#next !== 'comma or end') {
        this.#next = 'comma or end'
        return at
      } else this.#betweenItems(byte)
    }
    return bytes.length
  }

  #withinString(byte: number): void {
    this.#keep(byte)
    if (this.#isEscaped) this.#isEscaped = false
    else if (byte === BACKSLASH) this.#isEscaped = true
    else if (byte === QUOTE) this.#inString = false
    if (this.#inString && this.#string.length <= ITEMS.length) this.#string += String.fromCharCode(byte)
  }

  #outside(byte: number): void {
    if (this.#depth === 0 && !isBlank(byte) && (byte !== OPEN_BRACE || this.isClosed))
      throw new WireError(this.isClosed ? 'data after the end of the list' : 'not a JSON object')
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
    else if (!isBlank(byte)) throw new WireError('items of the list are not objects with commas between them')
  }

  #keep(byte: number): void {
    if (this.#depth === 0 && isBlank(byte)) return
    if (this.#length >= this.#bytesMax)
      throw new WireError(`a list that has ${this.#bytesMax} bytes without its items`)
    if (this.#length === this.#kept.length) this.#kept = Buffer.concat([this.#kept], 2 * this.#length)
    this.#kept[this.#length++] = byte
  }
}

const UTF8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

/** The one object that these bytes say. Throws WireError, also for what is not UTF-8: Go never writes that. */
export function objectIn(bytes: Uint8Array): Message {
  const value = valueIn(bytes)
  if (!isMessage(value)) throw new WireError('not a JSON object')
  return value
}

function valueIn(bytes: Uint8Array): unknown {
  try {
    return JSON.parse(UTF8.decode(bytes))
  } catch (error) {
    // Messages of JSON.parse quote the text, which may be anything.
    const what = error instanceof SyntaxError ? 'not JSON' : 'not UTF-8'
    throw new WireError(`${what}, in an object of ${bytes.length} bytes`, { cause: error })
  }
}
