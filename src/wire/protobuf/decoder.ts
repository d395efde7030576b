import { unreachable, WireError } from '../../base/errors.ts'
import {
  type BytesShape,
  type ElementShape,
  FIXED32,
  FIXED64,
  GROUP_END,
  GROUP_START,
  KEY_TAG,
  LENGTH,
  type MessageOf,
  type NumberShape,
  type Table,
  VALUE_TAG,
  VARINT,
  VARINT_BYTES_MAX,
} from './table.ts'

interface Message {
  [field: string]: unknown
}

interface Span {
  readonly bytes: Buffer
  readonly start: number
  readonly end: number
}

/** Maximum depth of groups within groups; no other nesting goes deeper than the tables do. */
const GROUPS_MAX = 16

/**
 * Reads messages of protobuf by their tables, in one pass and without a value for anything that no table names. Of a
 * field that is there twice the last counts. Borders are checked before bytes are read.
 */
export class ProtobufDecoder {
  #pool: StringPool | undefined
  #shared: MessagePool | undefined
  #bytes: Buffer = Buffer.alloc(0)
  #at = 0
  /** The halves of the last varint of more than one byte. */
  #low = 0
  #high = 0

  /** Adds the message's fields to `into`. Throws WireError. */
  decode<T extends Table, I extends object>(table: T, span: Span, into?: I): I & MessageOf<T>
  decode(table: Table, span: Span, into: Message = {}): Message {
    this.#bytes = span.bytes
    this.#at = span.start
    return this.#message(table, span.end, into)
  }

  #message(table: Table, end: number, values: Message): Message {
    const { byTag } = table
    while (this.#at < end) {
      const tag = this.#varint(end)
      const column = tag < byTag.length ? byTag[tag] : undefined
      if (column === undefined) this.#skip(tag, end, 0)
      else if (column.isNumber) this.#readNumber(column.name, column.shape, end, values)
      else {
        const stop = this.#stop(end)
        this.#readBytes(column.name, column.shape, stop, values)
        this.#at = stop
      }
    }
    return values
  }

  #readNumber(name: string, shape: NumberShape, end: number, values: Message): void {
    const number = this.#varint(end)
    if (number === 0 && !shape.keepsEmpty) return
    switch (shape.kind) {
      case 'bool':
        values[name] = number !== 0
        break
      case 'int32':
        values[name] = number < 0x80 ? number : this.#low | 0
        break
      case 'int64':
        values[name] = number < 0x80 ? number : (this.#high | 0) * 2 ** 32 + this.#low
        break
      default:
        unreachable(shape.kind)
    }
  }

  #readBytes(name: string, shape: BytesShape, stop: number, values: Message): void {
    switch (shape.kind) {
      case 'list': {
        const value = this.#element(shape.of, stop)
        const list = values[name]
        if (Array.isArray(list)) list.push(value)
        else values[name] = [value]
        break
      }
      case 'entries':
        this.#entry(name, shape.keys, stop, values)
        break
      default:
        if (this.#at < stop || shape.keepsEmpty) values[name] = this.#element(shape, stop)
    }
  }

  #element(shape: ElementShape, stop: number): unknown {
    switch (shape.kind) {
      case 'text':
        return textOf(this.#bytes, this.#at, stop)
      case 'name':
        this.#pool ??= new StringPool()
        return this.#pool.text(this.#bytes, this.#at, stop)
      case 'message':
        return shape.isShared ? this.#pooled(shape.table, stop) : this.#message(shape.table, stop, {})
      case 'bytes':
        return this.#bytes.subarray(this.#at, stop)
      case 'converted':
        return shape.toValue(this.#message(shape.table, stop, {}))
      default:
        return unreachable(shape)
    }
  }

  #pooled(table: Table, stop: number): Message {
    const start = this.#at
    this.#shared ??= new MessagePool()
    const known = this.#shared.get(table, this.#bytes, start, stop)
    if (known !== undefined) return known
    const value = this.#message(table, stop, {})
    this.#shared.put(table, this.#bytes.subarray(start, stop), value)
    return value
  }

  /** Maps are lists of messages {key = 1, value = 2}. */
  #entry(name: string, keys: readonly string[] | undefined, stop: number, values: Message): void {
    let key: string | undefined
    let start = stop
    let end = stop
    while (this.#at < stop) {
      const tag = this.#varint(stop)
      if (tag !== KEY_TAG && tag !== VALUE_TAG) {
        this.#skip(tag, stop, 0)
        continue
      }
      const next = this.#stop(stop)
      if (tag === KEY_TAG)
        key =
          keys === undefined ? textOf(this.#bytes, this.#at, next) : keyAt(keys, this.#bytes, this.#at, next)
      else {
        start = this.#at
        end = next
      }
      this.#at = next
    }
    if (key === undefined) return
    const kept = values[name]
    const text = textOf(this.#bytes, start, end)
    if (isMessage(kept)) kept[key] = text
    else values[name] = { [key]: text }
  }

  /** Reads a length; gives where that many bytes end. */
  #stop(end: number): number {
    const length = this.#varint(end)
    if (length > end - this.#at)
      throw new WireError(`a field of ${length} bytes where ${end - this.#at} are left`)
    return this.#at + length
  }

  #varint(end: number): number {
    const byte = this.#bytes[this.#at] ?? 0
    if (byte > 0x7f || this.#at >= end) return this.#longVarint(end)
    this.#at++
    return byte
  }

  /** Reads at most ten bytes of seven bits each, the lowest first. Beyond 2^53 the result is inexact; #low and #high are exact. */
  #longVarint(end: number): number {
    const bytes = this.#bytes
    let low = 0
    let high = 0
    for (let shift = 0; shift < 70; shift += 7) {
      if (this.#at >= end) throw new WireError('a number that does not end within its message')
      const byte = bytes[this.#at++] ?? 0
      const bits = byte & 0x7f
      if (shift < 28) low |= bits << shift
      else if (shift === 28) {
        low |= bits << 28
        high = bits >>> 4
      } else high |= bits << (shift - 32)
      if (byte > 0x7f) continue
      if (shift === 63 && bits > 1) break
      this.#low = low >>> 0
      this.#high = high >>> 0
      return this.#high * 2 ** 32 + this.#low
    }
    throw new WireError('a number of more than 64 bits')
  }

  #skip(tag: number, end: number, depth: number): void {
    if (tag < 8 || tag > 0xffffffff) throw new WireError(`a field with the number ${Math.floor(tag / 8)}`)
    switch (tag & 7) {
      case VARINT:
        this.#varint(end)
        break
      case FIXED64:
        this.#pass(8, end)
        break
      case LENGTH:
        this.#at = this.#stop(end)
        break
      case GROUP_START:
        this.#skipGroup(tag, end, depth)
        break
      case FIXED32:
        this.#pass(4, end)
        break
      default:
        throw new WireError(`a field of the wire type ${tag & 7}`)
    }
  }

  #pass(length: number, end: number): void {
    if (length > end - this.#at)
      throw new WireError(`a field of ${length} bytes where ${end - this.#at} are left`)
    this.#at += length
  }

  #skipGroup(start: number, end: number, depth: number): void {
    if (depth >= GROUPS_MAX) throw new WireError(`groups are nested deeper than ${GROUPS_MAX}`)
    while (this.#at < end) {
      const tag = this.#varint(end)
      if (tag === start - GROUP_START + GROUP_END) return
      this.#skip(tag, end, depth + 1)
    }
    throw new WireError('a group that does not end within its message')
  }
}

function keyAt(keys: readonly string[], bytes: Buffer, start: number, end: number): string | undefined {
  for (let index = 0; index < keys.length; index++) {
    const key = keys[index]
    if (key !== undefined && says(key, bytes, start, end)) return key
  }
  return undefined
}

function isMessage(value: unknown): value is Message {
  return typeof value === 'object' && value !== null
}

/** Reads one message of its own. Throws WireError. */
export function decodeMessage<T extends Table>(table: T, bytes: Buffer): MessageOf<T> {
  return new ProtobufDecoder().decode(table, { bytes, start: 0, end: bytes.length })
}

/** Each slot keeps one string, so that this is the bound; strings that meet in a slot take turns. */
const SLOTS = 4096
/** Longer strings are hardly ever repeated. */
const BYTES_MAX = 64

/** One copy of each short string that comes again and again: found by its bytes, without making a string first. */
export class StringPool {
  readonly #slots: string[] = new Array<string>(SLOTS).fill('')

  text(bytes: Buffer, start: number, end: number): string {
    if (end - start > BYTES_MAX) return textOf(bytes, start, end)
    let hash = 0
    let bits = 0
    for (let at = start; at < end; at++) {
      const byte = bytes[at] ?? 0
      hash = (Math.imul(hash, 31) + byte) | 0
      bits |= byte
    }
    if (bits > ASCII_MAX) return bytes.toString('utf8', start, end)
    const slot = (hash ^ (hash >>> 12)) & (SLOTS - 1)
    const known = this.#slots[slot]
    if (known !== undefined && says(known, bytes, start, end)) return known
    const text = bytes.toString('latin1', start, end)
    this.#slots[slot] = text
    return text
  }
}

const MESSAGE_SLOTS = 256

interface PooledMessage {
  readonly table: Table
  /** One character per byte. */
  readonly text: string
  readonly value: Message
}

/** One copy of each short message that comes again and again, bounded as StringPool is. */
class MessagePool {
  readonly #slots = new Array<PooledMessage | undefined>(MESSAGE_SLOTS).fill(undefined)

  get(table: Table, bytes: Buffer, start: number, end: number): Message | undefined {
    if (end - start > BYTES_MAX) return undefined
    const known = this.#slots[slotOf(bytes, start, end)]
    return known?.table === table && says(known.text, bytes, start, end) ? known.value : undefined
  }

  put(table: Table, bytes: Buffer, value: Message): void {
    if (bytes.length > BYTES_MAX) return
    this.#slots[slotOf(bytes, 0, bytes.length)] = { table, text: bytes.toString('latin1'), value }
  }
}

function slotOf(bytes: Buffer, start: number, end: number): number {
  let hash = 0
  for (let at = start; at < end; at++) hash = (Math.imul(hash, 31) + (bytes[at] ?? 0)) | 0
  return (hash ^ (hash >>> 8)) & (MESSAGE_SLOTS - 1)
}

const ASCII_MAX = 0x7f

/** Tests whether the bytes, one a character, spell the text. */
function says(text: string, bytes: Buffer, start: number, end: number): boolean {
  if (text.length !== end - start) return false
  for (let at = 0; at < text.length; at++) if (text.charCodeAt(at) !== bytes[start + at]) return false
  return true
}

/**
 * Replaces invalid UTF-8 by U+FFFD, as Go does when it writes the same object as JSON. The API server accepts such text
 * in annotations, and no annotation may end a stream.
 */
function textOf(bytes: Buffer, start: number, end: number): string {
  for (let at = start; at < end; at++)
    if ((bytes[at] ?? 0) > ASCII_MAX) return bytes.toString('utf8', start, end)
  return bytes.toString('latin1', start, end)
}

/** The position of a field that may not have arrived entirely. */
export interface FieldSpan {
  readonly tag: number
  /** The start of its contents, behind tag and length. */
  readonly start: number
  /** The contents take this many bytes. */
  readonly length: number
}

/** The field at `at`; undefined when too few bytes have arrived. Throws WireError. */
export function fieldAt(bytes: Buffer, at: number): FieldSpan | undefined {
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
