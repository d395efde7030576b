import { hasMagic, MAGIC, refuseEncodings, typeOf, versionOfList } from './kinds.ts'
import { listMetaIn, type Message } from './message.ts'
import { ProtobufDecoder } from './protobuf-decoder.ts'
import { FIXED32, FIXED64, LENGTH, VARINT } from './protobuf-table.ts'
import { type ListMeta, type ListReader, type ListReaderOptions, WireError } from './reader.ts'
import { Rest } from './rest.ts'
import { LIST, LIST_ITEMS, tableFor, UNKNOWN, UNKNOWN_RAW } from './tables.ts'

const RAW_TAG = UNKNOWN_RAW * 8 + LENGTH
const ITEM_TAG = LIST_ITEMS * 8 + LENGTH

/** Reads the fields of the envelope and of the list in it one by one; each is let go of before the next. */
export class ProtobufListReader implements ListReader {
  readonly #options: ListReaderOptions
  readonly #decoder = new ProtobufDecoder()
  readonly #rest = new Rest()
  readonly #envelope: Message = {}
  readonly #list: Message = {}
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
    if (this.#place === 'envelope') this.#decoder.decode(UNKNOWN, { bytes, start: at, end }, this.#envelope)
    else {
      if (field.tag === ITEM_TAG) this.#readItem(bytes, field.start, end)
      else this.#decoder.decode(LIST, { bytes, start: at, end }, this.#list)
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

  #openList(field: Field): number {
    if (this.#apiVersion !== undefined) throw new WireError('a second list in one body')
    this.#apiVersion = versionOfList(typeOf(this.#envelope), this.#options.kind)
    this.#place = 'list'
    this.#listLeft = field.length
    this.#leave(0)
    return field.start
  }

  #readItem(bytes: Buffer, start: number, end: number): void {
    const { kind, onItem } = this.#options
    onItem(
      this.#decoder.decode(
        tableFor(this.#options),
        { bytes, start, end },
        { apiVersion: this.#apiVersion, kind },
      ),
    )
  }

  #leave(count: number): void {
    this.#listLeft -= count
    if (this.#listLeft === 0) this.#place = 'envelope'
  }
}

/** The position of a field that may not have arrived entirely. */
interface Field {
  readonly tag: number
  /** The start of its contents, behind tag and length. */
  readonly start: number
  /** Bytes of its contents. */
  readonly length: number
}

/** The field at `at`; undefined when too few bytes have arrived. Throws WireError. */
function fieldAt(bytes: Buffer, at: number): Field | undefined {
  const tag = varintAt(bytes, at)
  if (tag === undefined) return undefined
  switch (tag.value & 7) {
    case LENGTH: {
      const length = varintAt(bytes, tag.end)
      return length && { tag: tag.value, start: length.end, length: length.value }
    }
    case VARINT: {
      const value = varintAt(bytes, tag.end)
      return value && { tag: tag.value, start: tag.end, length: value.end - tag.end }
    }
    case FIXED32:
      return { tag: tag.value, start: tag.end, length: 4 }
    case FIXED64:
      return { tag: tag.value, start: tag.end, length: 8 }
    default:
      throw new WireError(`a field of the wire type ${tag.value & 7}`)
  }
}

interface Varint {
  /** Inexact beyond 2^53. */
  readonly value: number
  readonly end: number
}

const VARINT_BYTES_MAX = 10

function varintAt(bytes: Buffer, at: number): Varint | undefined {
  let value = 0
  for (let index = 0; index < VARINT_BYTES_MAX; index++) {
    const byte = bytes[at + index]
    if (byte === undefined) return undefined
    value += (byte & 0x7f) * 2 ** (7 * index)
    if (byte < 0x80) return { value, end: at + index + 1 }
  }
  throw new WireError('a number of more than 64 bits')
}
