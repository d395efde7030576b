import { WireError } from '../../../base/errors.ts'
import { Rest } from '../../../base/octets.ts'
import { isBlank, JsonItems } from '../../json-items.ts'
import {
  defaultVersion,
  isMessage,
  type ListMeta,
  type ListReader,
  type ListReaderOptions,
  listMetaIn,
  type Message,
  type ReaderOptions,
  versionOfList,
  type WatchEvent,
  type WatchReader,
  withType,
} from './tables.ts'

const NEWLINE = 0x0a
const AFTER = 'data after the end of the list'
const UTF8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

/** The one object in these bytes. Throws WireError, also for what is not UTF-8: Go never writes that. */
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

/** Has each item of the list parsed by itself. */
export class JsonListReader implements ListReader {
  readonly #options: ListReaderOptions
  readonly #items: JsonItems
  #apiVersion: string | undefined
  #list: Message | undefined

  constructor(options: ListReaderOptions) {
    this.#options = options
    this.#items = new JsonItems(options.objectBytesMax)
  }

  push(piece: Uint8Array): void {
    for (const { kind, bytes } of this.#items.push(piece)) {
      if (this.#list !== undefined) throw new WireError(AFTER)
      if (kind === 'item') this.#readItem(bytes)
      else this.#list = objectIn(bytes)
    }
  }

  end(): ListMeta {
    const list = this.#list
    if (list === undefined) throw new WireError('the list is truncated')
    if (this.#items.unfinished !== undefined) throw new WireError(AFTER)
    versionOfList(list, this.#options.kind)
    // Go writes an empty slice that is nil as null; a list without items leaves them open.
    if (list.items !== null && !Array.isArray(list.items)) throw new WireError('a list without items')
    // A key that is written with escapes was not recognized.
    if (Array.isArray(list.items) && list.items.length > 0)
      throw new WireError('the key of items has escapes')
    return listMetaIn(list)
  }

  #readItem(bytes: Buffer): void {
    const { kind, onItem } = this.#options
    this.#apiVersion ??= this.#versionSoFar()
    onItem(withType(objectIn(bytes), kind, this.#apiVersion))
  }

  /** A list names its kind first; if one does not, its items are delivered before the kind is known. */
  #versionSoFar(): string {
    const { kind } = this.#options
    const list = objectIn(this.#items.envelope)
    return list.kind === undefined || list.apiVersion === undefined
      ? defaultVersion(kind)
      : versionOfList(list, kind)
  }
}

/** One object a line: a raw newline stands within no string of JSON. */
export class JsonWatchReader implements WatchReader {
  readonly #options: ReaderOptions
  readonly #rest = new Rest()
  /** The bytes of the rest that hold no newline. */
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
