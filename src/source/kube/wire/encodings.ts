import { WireError } from '../../../base/errors.ts'
import { Rest } from '../../../base/octets.ts'
import { listAt, numberAt, textAt } from '../../../base/plain-data.ts'
import { printable } from '../../../model/fields.ts'
import { type FieldSpan, fieldAt, ProtobufDecoder } from '../../../wire/protobuf/decoder.ts'
import { LENGTH, type MessageOf } from '../../../wire/protobuf/table.ts'
import { isBlank, JsonItems } from '../../json-items.ts'
import {
  type ApiObject,
  defaultVersion,
  isMessage,
  isOfKind,
  LIST,
  LIST_ITEMS,
  type ListMeta,
  type ListReader,
  type ListReaderOptions,
  listMetaIn,
  type Message,
  type ReaderOptions,
  STATUS,
  tableFor,
  UNKNOWN,
  UNKNOWN_RAW,
  versionOfList,
  WATCH_EVENT,
  type WatchEvent,
  type WatchReader,
  withType,
} from './tables.ts'

/**
 * Reads a list from a body of this Content-Type. Items are delivered one by one as their last byte arrives; whether they are
 * all there, end() says. Throws WireError for a type that cannot be read.
 */
export function createListReader(contentType: string, options: ListReaderOptions): ListReader {
  return encodingFor(contentType, options) === 'protobuf'
    ? new ProtobufListReader(options)
    : new JsonListReader(options)
}

export function createWatchReader(contentType: string, options: ReaderOptions): WatchReader {
  return encodingFor(contentType, options) === 'protobuf'
    ? new ProtobufWatchReader(options)
    : new JsonWatchReader(options)
}

const PROTOBUF = 'application/vnd.kubernetes.protobuf'
const JSON_TYPE = 'application/json'

type Encoding = 'protobuf' | 'json'

/**
 * Chooses the reader for a Content-Type; parameters count for nothing. Throws WireError for any other type, and for
 * JSON where the bytes of each object are wanted: an answer fails as a whole, not object by object.
 */
function encodingFor(contentType: string, { encoded }: Pick<ReaderOptions, 'encoded'> = {}): Encoding {
  const encoding = knownEncoding(contentType)
  if (encoding === 'protobuf' || (encoding === 'json' && encoded === undefined)) return encoding
  const supported =
    encoded === undefined ? `supported are ${PROTOBUF} and ${JSON_TYPE}` : `needed is ${PROTOBUF}`
  throw new WireError(`the body has the content type ${printable(contentType) || '(none)'}; ${supported}`)
}

function knownEncoding(contentType: string): Encoding | undefined {
  const type = (contentType.split(';')[0] ?? '').trim().toLowerCase()
  if (type === PROTOBUF) return 'protobuf'
  return type === JSON_TYPE ? 'json' : undefined
}

/**
 * The Accept header for configured content types (clientConnection.contentType, and .acceptContentTypes, which wins when
 * it is not empty). JSON is acceptable unless the latter leaves it out: servers of custom resources have nothing else.
 * What cannot be read, such as CBOR, is not asked for.
 */
export function acceptFor(contentType: string, acceptContentTypes = ''): string {
  const accepted = acceptContentTypes.split(',').filter(type => knownEncoding(type) !== undefined)
  if (accepted.length > 0) return accepted.map(type => type.trim()).join(', ')
  return contentType.trim().toLowerCase() === PROTOBUF ? `${PROTOBUF}, ${JSON_TYPE}` : JSON_TYPE
}

/** The server's error: metav1.Status. */
export interface ApiStatus {
  /** HTTP status; 0 when absent. */
  readonly code: number
  /** The reason for programs: `Expired`, `TooManyRequests`; empty when absent. */
  readonly reason: string
  /** Empty when absent. */
  readonly message: string
  /** The reasons of details.causes: `ResourceVersionTooLarge`. */
  readonly causes: readonly string[]
  readonly retryAfterSeconds: number | undefined
}

/** The Status that an error response has as its body; undefined for any other body. */
export function readStatus(contentType: string, bytes: Uint8Array): ApiStatus | undefined {
  try {
    return statusOf(encodingFor(contentType) === 'protobuf' ? fromProtobuf(bytes) : objectIn(bytes))
  } catch (error) {
    // Proxies and load balancers answer with pages of their own.
    if (error instanceof WireError) return undefined
    throw error
  }
}

/** Reads the Status of an ERROR event of a watch; undefined when the object is none. */
export function statusOf(object: ApiObject): ApiStatus | undefined {
  if (object.kind !== 'Status' || object.apiVersion !== 'v1') return undefined
  const { details } = object
  return {
    code: numberAt(object, 'code') ?? 0,
    reason: textAt(object, 'reason'),
    message: textAt(object, 'message'),
    causes: listAt(details, 'causes').flatMap(cause => textAt(cause, 'reason') || []),
    retryAfterSeconds: numberAt(details, 'retryAfterSeconds'),
  }
}

function fromProtobuf(bytes: Uint8Array): Message {
  const decoder = new ProtobufDecoder()
  const { type, raw } = openEnvelope(decoder, Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength))
  return decoder.decode(STATUS, { bytes: raw, start: 0, end: raw.length }, { ...type })
}

const NEWLINE = 0x0a
const AFTER = 'data after the end of the list'
const UTF8 = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true })

/** The one object that these bytes say. Throws WireError, also for what is not UTF-8: Go never writes that. */
function objectIn(bytes: Uint8Array): Message {
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
class JsonListReader implements ListReader {
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
    // Go writes an empty slice that is nil as null; a list that does not name its items says nothing about them.
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
class JsonWatchReader implements WatchReader {
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

/** Every body in protobuf begins with `k8s` and a NUL; a runtime.Unknown follows. */
const MAGIC: readonly number[] = [0x6b, 0x38, 0x73, 0]

function hasMagic(bytes: Buffer, at = 0): boolean {
  return MAGIC.every((byte, index) => bytes[at + index] === byte)
}

/** The type of an object in protobuf and its own bytes. Throws WireError for anything else. */
function openEnvelope(decoder: ProtobufDecoder, bytes: Buffer) {
  if (!hasMagic(bytes)) throw new WireError('protobuf without its first four bytes, k8s and NUL')
  const unknown = decoder.decode(UNKNOWN, { bytes, start: MAGIC.length, end: bytes.length })
  refuseEncodings(unknown)
  const { typeMeta = {}, raw = bytes.subarray(0, 0) } = unknown
  return { type: typeMeta, raw }
}

/** The API server leaves both empty; anything else is not what our tables read. */
function refuseEncodings({ contentEncoding, contentType }: MessageOf<typeof UNKNOWN>): void {
  if (contentEncoding !== undefined)
    throw new WireError(`an object in the encoding ${printable(contentEncoding)}; none is expected`)
  if (contentType !== undefined)
    throw new WireError(`an object of the type ${printable(contentType)} within protobuf`)
}

const RAW_TAG = UNKNOWN_RAW * 8 + LENGTH
const ITEM_TAG = LIST_ITEMS * 8 + LENGTH

/** Reads the fields of the envelope and of the list in it one by one; each is let go of before the next. */
class ProtobufListReader implements ListReader {
  readonly #options: ListReaderOptions
  readonly #decoder = new ProtobufDecoder()
  readonly #rest = new Rest()
  #envelope: MessageOf<typeof UNKNOWN> = {}
  #list: MessageOf<typeof LIST> = {}
  #place: 'start' | 'envelope' | 'list' = 'start'
  /** The apiVersion of the list's items; undefined before the list has begun. */
  #apiVersion: string | undefined
  /** Bytes of the list that are still to come. */
  #listLeft = 0

  constructor(options: ListReaderOptions) {
    this.#options = options
  }

  push(piece: Uint8Array): void {
    const bytes = this.#rest.with(piece)
    let at = 0
    for (let next = this.#step(bytes, at); next > at; next = this.#step(bytes, at)) at = next
    this.#rest.leave(bytes, at)
  }

  end(): ListMeta {
    if (this.#place !== 'envelope' || this.#rest.length > 0 || this.#apiVersion === undefined)
      throw new WireError('the list is truncated')
    refuseEncodings(this.#envelope)
    return listMetaIn(this.#list)
  }

  /** Reads what begins at `at`; gives where it ends, or `at` when it has not arrived entirely. */
  #step(bytes: Buffer, at: number): number {
    if (this.#place === 'start') return this.#readMagic(bytes, at)
    const field = fieldAt(bytes, at)
    if (field === undefined) return at
    if (this.#place === 'envelope' && field.tag === RAW_TAG) return this.#openList(field)
    if (field.length > this.#options.objectBytesMax)
      throw new WireError(`an object of ${field.length} bytes; ${this.#options.objectBytesMax} are accepted`)
    const end = field.start + field.length
    if (this.#place === 'list' && end - at > this.#listLeft)
      throw new WireError('a field of the list is longer than the list')
    if (end > bytes.length) return at
    const span = { bytes, start: at, end }
    if (this.#place === 'envelope') this.#envelope = this.#decoder.decode(UNKNOWN, span, this.#envelope)
    else {
      if (field.tag === ITEM_TAG) this.#readItem(bytes, field.start, end)
      else this.#list = this.#decoder.decode(LIST, span, this.#list)
      this.#leave(end - at)
    }
    return end
  }

  #readMagic(bytes: Buffer, at: number): number {
    if (bytes.length - at < MAGIC.length) return at
    if (!hasMagic(bytes, at)) throw new WireError('protobuf without its first four bytes, k8s and NUL')
    this.#place = 'envelope'
    return at + MAGIC.length
  }

  #openList(field: FieldSpan): number {
    if (this.#apiVersion !== undefined) throw new WireError('a second list in one body')
    this.#apiVersion = versionOfList(this.#envelope.typeMeta ?? {}, this.#options.kind)
    this.#place = 'list'
    this.#listLeft = field.length
    this.#leave(0)
    return field.start
  }

  #readItem(bytes: Buffer, start: number, end: number): void {
    const { kind, onItem, encoded } = this.#options
    const object = this.#decoder.decode(
      tableFor(this.#options),
      { bytes, start, end },
      { apiVersion: this.#apiVersion, kind },
    )
    encoded?.(object, bytes.subarray(start, end))
    onItem(object)
  }

  #leave(count: number): void {
    this.#listLeft -= count
    if (this.#listLeft === 0) this.#place = 'envelope'
  }
}

const LENGTH_BYTES = 4

/** Frames with their length before them (32 bits, the highest byte first), each a WatchEvent. */
class ProtobufWatchReader implements WatchReader {
  readonly #options: ReaderOptions
  readonly #decoder = new ProtobufDecoder()
  readonly #rest = new Rest()

  constructor(options: ReaderOptions) {
    this.#options = options
  }

  push(piece: Uint8Array): readonly WatchEvent[] {
    const { objectBytesMax } = this.#options
    const bytes = this.#rest.with(piece)
    const events: WatchEvent[] = []
    let at = 0
    while (bytes.length - at >= LENGTH_BYTES) {
      const length = bytes.readUInt32BE(at)
      if (length > objectBytesMax)
        throw new WireError(`an event of ${length} bytes; ${objectBytesMax} are accepted`)
      const start = at + LENGTH_BYTES
      if (length > bytes.length - start) break
      events.push(this.#read(bytes.subarray(start, start + length)))
      at = start + length
    }
    this.#rest.leave(bytes, at)
    return events
  }

  end(): void {
    if (this.#rest.length > 0) throw new WireError('the watch ended within an event')
  }

  /** The API server writes the event bare; one in an envelope, as other bodies are, is understood as well. */
  #read(frame: Buffer): WatchEvent {
    const bytes = hasMagic(frame) ? openEnvelope(this.#decoder, frame).raw : frame
    const { type, object } = this.#decoder.decode(WATCH_EVENT, { bytes, start: 0, end: bytes.length })
    const raw = object?.raw
    if (type === undefined || raw === undefined) throw new WireError('an event without a type or an object')
    return { type, object: type === 'ERROR' ? this.#readStatus(raw) : this.#readObject(raw) }
  }

  /** Reads an object; for another kind, only its type. */
  #readObject(bytes: Buffer): ApiObject {
    const { type, raw } = openEnvelope(this.#decoder, bytes)
    const { kind, encoded } = this.#options
    const { apiVersion = defaultVersion(kind), kind: itsKind = kind } = type
    const into = { apiVersion, kind: itsKind }
    if (!isOfKind(into, kind)) return into
    const span = { bytes: raw, start: 0, end: raw.length }
    const object = this.#decoder.decode(tableFor(this.#options), span, into)
    encoded?.(object, raw)
    return object
  }

  #readStatus(bytes: Buffer): ApiObject {
    const { raw } = openEnvelope(this.#decoder, bytes)
    const into = { apiVersion: 'v1', kind: 'Status' }
    return this.#decoder.decode(STATUS, { bytes: raw, start: 0, end: raw.length }, into)
  }
}
