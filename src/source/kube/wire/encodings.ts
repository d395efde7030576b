import { WireError } from '../../../base/errors.ts'
import { Rest } from '../../../base/octets.ts'
import { listAt, numberAt, textAt } from '../../../base/plain-data.ts'
import { printable } from '../../../model/fields.ts'
import { ProtobufDecoder } from '../../../wire/protobuf/decoder.ts'
import { isBlank, JsonItems } from '../../json-items.ts'
import { openEnvelope, ProtobufListReader, ProtobufWatchReader } from './protobuf.ts'
import {
  type ApiObject,
  defaultVersion,
  isMessage,
  type ListMeta,
  type ListReader,
  type ListReaderOptions,
  listMetaIn,
  type Message,
  type ReaderOptions,
  STATUS,
  versionOfList,
  type WatchEvent,
  type WatchReader,
  withType,
} from './tables.ts'

/**
 * Reads a list from a body of this Content-Type. Items are delivered one by one as their last byte arrives; whether they are
 * all there, end() says. Throws WireError for a type that cannot be read.
 */
export function createListReader(contentType: string, options: ListReaderOptions): ListReader {
  return encodingOf(contentType) === 'protobuf'
    ? new ProtobufListReader(options)
    : new JsonListReader(options)
}

/** The same for a watch. */
export function createWatchReader(contentType: string, options: ReaderOptions): WatchReader {
  return encodingOf(contentType) === 'protobuf'
    ? new ProtobufWatchReader(options)
    : new JsonWatchReader(options)
}

const PROTOBUF = 'application/vnd.kubernetes.protobuf'
const JSON_TYPE = 'application/json'

type Encoding = 'protobuf' | 'json'

/** How a body of this Content-Type is read; parameters count for nothing. Throws WireError for any other type. */
function encodingOf(contentType: string): Encoding {
  const encoding = knownEncoding(contentType)
  if (encoding !== undefined) return encoding
  throw new WireError(
    `the body has the content type ${printable(contentType) || '(none)'}; supported are ${PROTOBUF} and ${JSON_TYPE}`,
  )
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

/** Why a request failed, in the server's words: metav1.Status. */
export interface ApiStatus {
  /** HTTP status; 0 when absent. */
  readonly code: number
  /** The reason for programs: `Expired`, `TooManyRequests`; empty when absent. */
  readonly reason: string
  /** The text for people; empty when absent. */
  readonly message: string
  /** The reasons of details.causes: `ResourceVersionTooLarge`. */
  readonly causes: readonly string[]
  /** How long to wait; undefined when absent. */
  readonly retryAfterSeconds: number | undefined
}

/** The Status that an error response has as its body; undefined for any other body. */
export function readStatus(contentType: string, bytes: Uint8Array): ApiStatus | undefined {
  try {
    return statusOf(encodingOf(contentType) === 'protobuf' ? fromProtobuf(bytes) : objectIn(bytes))
  } catch (error) {
    // Proxies and load balancers answer with pages of their own.
    if (error instanceof WireError) return undefined
    throw error
  }
}

/** The same of an object, as ERROR events of a watch have it; undefined when it is not a Status. */
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
