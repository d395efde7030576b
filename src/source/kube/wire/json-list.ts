import { WireError } from '../../../wire/wire-error.ts'
import {
  BACKSLASH,
  CLOSE_BRACE,
  CLOSE_BRACKET,
  JsonFrame,
  OPEN_BRACE,
  OPEN_BRACKET,
  objectIn,
  QUOTE,
} from './json-frame.ts'
import { defaultVersion, versionOfList, withType } from './kinds.ts'
import { listMetaIn } from './message.ts'
import type { ListMeta, ListReader, ListReaderOptions } from './reader.ts'
import { Rest } from './rest.ts'

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
