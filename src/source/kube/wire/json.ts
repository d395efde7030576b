import { WireError } from '../../../base/errors.ts'
import {
  BACKSLASH,
  CLOSE_BRACE,
  CLOSE_BRACKET,
  COLON,
  COMMA,
  NEWLINE,
  OPEN_BRACE,
  OPEN_BRACKET,
  QUOTE,
  RETURN,
  SPACE,
  TAB,
} from '../../json-bytes.ts'
import {
  defaultVersion,
  isMessage,
  type ListMeta,
  type ListReader,
  type ListReaderOptions,
  listMetaIn,
  type Message,
  type ReaderOptions,
  Rest,
  versionOfList,
  type WatchEvent,
  type WatchReader,
  withType,
} from './tables.ts'

function isBlank(byte: number): boolean {
  return byte === SPACE || byte === NEWLINE || byte === RETURN || byte === TAB
}

const ITEMS = 'items'
const ROOM = 1024

/** A list without what stands between the brackets of its `items`: passes over it, and keeps it to be parsed. */
class JsonFrame {
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

/** Finds the borders of the list's items while the bytes arrive, and has each parsed by itself. */
export class JsonListReader implements ListReader {
  readonly #options: ListReaderOptions
  readonly #frame: JsonFrame
  readonly #rest = new Rest()
  /** Brackets that are open in the current item; 0 between items. */
  #depth = 0
  #inString = false
  /** How much of the rest, which begins with the current item, was scanned; one more when the next byte is escaped. */
  #scanned = 0
  #apiVersion: string | undefined

  constructor(options: ListReaderOptions) {
    this.#options = options
    this.#frame = new JsonFrame(options.objectBytesMax)
  }

  push(piece: Uint8Array): void {
    const bytes = this.#rest.with(piece)
    let start = 0
    let at = this.#scanned
    while (at < bytes.length) {
      if (this.#depth === 0) at = start = this.#frame.scan(bytes, at)
      at = this.#scanItem(bytes, at)
      if (this.#depth > 0) break
      if (at > start) this.#readItem(bytes.subarray(start, at))
      start = at
    }
    const { objectBytesMax } = this.#options
    if (bytes.length - start > objectBytesMax)
      throw new WireError(`an object of more than ${objectBytesMax} bytes`)
    this.#rest.leave(bytes, start)
    this.#scanned = at - start
  }

  end(): ListMeta {
    if (!this.#frame.isClosed) throw new WireError('the list is truncated')
    const list = objectIn(this.#frame.text())
    versionOfList(list, this.#options.kind)
    // Go writes an empty slice that is nil as null; a list that does not name its items says nothing about them.
    if (list.items !== null && !Array.isArray(list.items)) throw new WireError('a list without items')
    // A key that is written with escapes was not recognized.
    if (Array.isArray(list.items) && list.items.length > 0)
      throw new WireError('the key of items has escapes')
    return listMetaIn(list)
  }

  /** Gives the index behind the bracket that closes the item, or the end. */
  #scanItem(bytes: Buffer, start: number): number {
    let at = start
    let depth = this.#depth
    let inString = this.#inString
    for (; at < bytes.length; at++) {
      const byte = bytes[at]
      if (inString) {
        if (byte === BACKSLASH) at++
        else if (byte === QUOTE) inString = false
      } else if (byte === QUOTE) inString = true
      else if (byte === OPEN_BRACE || byte === OPEN_BRACKET) depth++
      else if ((byte === CLOSE_BRACE || byte === CLOSE_BRACKET) && --depth === 0) {
        at++
        break
      }
    }
    this.#depth = depth
    this.#inString = inString
    return at
  }

  #readItem(bytes: Buffer): void {
    const { kind, objectBytesMax, onItem } = this.#options
    if (bytes.length > objectBytesMax) throw new WireError(`an object of more than ${objectBytesMax} bytes`)
    this.#apiVersion ??= this.#versionSoFar()
    onItem(withType(objectIn(bytes), kind, this.#apiVersion))
  }

  /** A list names its kind first; if one does not, its items are delivered before the kind is known. */
  #versionSoFar(): string {
    const { kind } = this.#options
    const list = objectIn(this.#frame.text())
    return list.kind === undefined || list.apiVersion === undefined
      ? defaultVersion(kind)
      : versionOfList(list, kind)
  }
}

/** One object a line: a raw newline stands within no string of JSON. */
export class JsonWatchReader implements WatchReader {
  readonly #options: ReaderOptions
  readonly #rest = new Rest()
  /** How much of the rest has no newline. */
  #searched = 0

  constructor(options: ReaderOptions) {
    this.#options = options
  }

  push(piece: Uint8Array): readonly WatchEvent[] {
    const bytes = this.#rest.with(piece)
    const events: WatchEvent[] = []
    let at = 0
    let newline = bytes.indexOf(NEWLINE, this.#searched)
    for (; newline >= 0; newline = bytes.indexOf(NEWLINE, at)) {
      const line = bytes.subarray(at, newline)
      if (!line.every(isBlank)) events.push(this.#read(line))
      at = newline + 1
    }
    this.#bound(bytes.length - at)
    this.#searched = bytes.length - at
    this.#rest.leave(bytes, at)
    return events
  }

  end(): void {
    if (this.#rest.length > 0) throw new WireError('the watch ended within an event')
  }

  #read(line: Buffer): WatchEvent {
    this.#bound(line.length)
    const { type, object } = objectIn(line)
    if (typeof type !== 'string' || !isMessage(object))
      throw new WireError('an event without a type or an object')
    return { type, object: type === 'ERROR' ? object : withType(object, this.#options.kind) }
  }

  #bound(length: number): void {
    const { objectBytesMax } = this.#options
    if (length > objectBytesMax)
      throw new WireError(`an event of ${length} bytes; ${objectBytesMax} are accepted`)
  }
}
