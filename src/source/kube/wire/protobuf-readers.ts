import { WireError } from '../../../base/errors.ts'
import { Rest } from '../../../base/octets.ts'
import { printable } from '../../../model/fields.ts'
import { type FieldSpan, fieldAt, ProtobufDecoder } from '../../../wire/protobuf/decoder.ts'
import { LENGTH, type MessageOf } from '../../../wire/protobuf/table.ts'
import {
  type ApiObject,
  defaultVersion,
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
} from './tables.ts'

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
export class ProtobufListReader implements ListReader {
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

/** Frames with their length before them (32 bits, the highest byte first), each a WatchEvent. */
export class ProtobufWatchReader implements WatchReader {
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
    while (bytes.length - at >= 4) {
      const length = bytes.readUInt32BE(at)
      if (length > objectBytesMax)
        throw new WireError(`an event of ${length} bytes; ${objectBytesMax} are accepted`)
      const start = at + 4
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

/** Reads the Status that an error response has as its body. */
export function statusIn(bytes: Uint8Array): Message {
  const decoder = new ProtobufDecoder()
  const { type, raw } = openEnvelope(decoder, Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength))
  return decoder.decode(STATUS, { bytes: raw, start: 0, end: raw.length }, { ...type })
}
