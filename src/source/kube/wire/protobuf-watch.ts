import { ProtobufDecoder } from '../../../wire/protobuf/decoder.ts'
import { WireError } from '../../../wire/wire-error.ts'
import { defaultVersion, hasMagic, isOfKind, openEnvelope } from './kinds.ts'
import type { ApiObject, ReaderOptions, WatchEvent, WatchReader } from './reader.ts'
import { Rest } from './rest.ts'
import { STATUS, tableFor, WATCH_EVENT } from './tables.ts'

const LENGTH_BYTES = 4

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
    const { kind } = this.#options
    const { apiVersion = defaultVersion(kind), kind: itsKind = kind } = type
    const into = { apiVersion, kind: itsKind }
    return isOfKind(into, kind)
      ? this.#decoder.decode(tableFor(this.#options), { bytes: raw, start: 0, end: raw.length }, into)
      : into
  }

  #readStatus(bytes: Buffer): ApiObject {
    const { raw } = openEnvelope(this.#decoder, bytes)
    const into = { apiVersion: 'v1', kind: 'Status' }
    return this.#decoder.decode(STATUS, { bytes: raw, start: 0, end: raw.length }, into)
  }
}
