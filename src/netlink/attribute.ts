import type { Octets } from '../base/octets.ts'
import { NLA_F_NESTED, NLA_HDRLEN, NLA_TYPE_MASK } from './constants.ts'
import { malformed, unencodable } from './errors.ts'

/** One call into the runtime writes octets of this length, or longer ones, faster than a loop. */
const CALL_LENGTH = 64

/**
 * An append-only buffer that doubles its size when it is full. Host order is little-endian, as on every supported
 * platform. `bytes`, `words` and `view` change identity when it grows: a caller that writes through them calls
 * `reserve` first.
 */
export class ByteWriter {
  bytes: Uint8Array
  /** Views `bytes` for aligned access. */
  words: Int32Array
  view: DataView
  length = 0
  #buffer: Buffer | undefined

  constructor(capacity = 4096) {
    this.bytes = new Uint8Array(align4(capacity))
    this.words = new Int32Array(this.bytes.buffer)
    this.view = new DataView(this.bytes.buffer)
  }

  reserve(count: number): void {
    const needed = this.length + count
    if (needed <= this.bytes.length) return
    const grown = new Uint8Array(align4(Math.max(needed, this.bytes.length * 2)))
    grown.set(this.bytes.subarray(0, this.length))
    this.bytes = grown
    this.words = new Int32Array(grown.buffer)
    this.view = new DataView(grown.buffer)
  }

  u8(value: number): void {
    this.reserve(1)
    this.bytes[this.length++] = value
  }

  u16(value: number): void {
    this.reserve(2)
    this.view.setUint16(this.length, value, true)
    this.length += 2
  }

  u16be(value: number): void {
    this.reserve(2)
    this.view.setUint16(this.length, value)
    this.length += 2
  }

  u32(value: number): void {
    this.reserve(4)
    this.view.setUint32(this.length, value, true)
    this.length += 4
  }

  u32be(value: number): void {
    this.reserve(4)
    this.view.setUint32(this.length, value)
    this.length += 4
  }

  u64be(value: bigint): void {
    this.reserve(8)
    this.view.setBigUint64(this.length, value)
    this.length += 8
  }

  u64(value: bigint): void {
    this.reserve(8)
    this.view.setBigUint64(this.length, value, true)
    this.length += 8
  }

  octets(value: Octets): void {
    this.reserve(value.length)
    if (value.length > CALL_LENGTH) {
      this.#nodeBuffer().write(value, this.length, 'latin1')
      this.length += value.length
      return
    }
    const bytes = this.bytes
    let at = this.length
    for (let i = 0; i < value.length; i++) bytes[at++] = value.charCodeAt(i)
    this.length = at
  }

  /** Appends bytes unchanged. */
  raw(value: Uint8Array): void {
    this.reserve(value.length)
    this.bytes.set(value, this.length)
    this.length += value.length
  }

  #nodeBuffer(): Buffer {
    if (this.#buffer?.buffer !== this.bytes.buffer) this.#buffer = Buffer.from(this.bytes.buffer)
    return this.#buffer
  }

  utf8(text: string): void {
    // A UTF-16 unit takes at most three bytes of UTF-8.
    this.reserve(text.length * 3)
    const start = this.length
    for (let i = 0; i < text.length; i++) {
      const code = text.charCodeAt(i)
      if (code > 0x7f) {
        this.length = start
        this.#encode(text)
        return
      }
      this.bytes[this.length++] = code
    }
  }

  #encode(text: string): void {
    this.length += new TextEncoder().encodeInto(text, this.bytes.subarray(this.length)).written
  }

  zeros(count: number): void {
    this.reserve(count)
    for (let i = 0; i < count; i++) this.bytes[this.length++] = 0
  }

  /** Appends zeros up to the next multiple of four. */
  align(): void {
    const padding = -this.length & 3
    if (padding > 0) this.zeros(padding)
  }

  patchU16(offset: number, value: number): void {
    this.view.setUint16(offset, value, true)
  }

  patchU32(offset: number, value: number): void {
    this.view.setUint32(offset, value, true)
  }

  /** Returns the written bytes, without a copy. */
  written(): Uint8Array {
    return this.bytes.subarray(0, this.length)
  }
}

/** Bytes to decode. Readers check their bounds against their own `end` before they access them. */
export interface ByteView {
  readonly bytes: Buffer
  readonly data: DataView
}

/** Returns the same bytes with a DataView over them. */
export function viewOf(bytes: Uint8Array): ByteView {
  return {
    bytes: Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength),
    data: new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength),
  }
}

export function align4(length: number): number {
  return (length + 3) & ~3
}

/** nla_len has 16 bits and counts its own header. */
export const ATTRIBUTE_LENGTH_MAX = 0xffff
/** Maximum depth of nests within a message; the deepest of nf_tables has six. */
export const NESTING_MAX = 8

/**
 * Appends attributes. It refuses an attribute whose length, or whose parents' length, does not fit. A full load
 * writes a million attributes, most of them before the JIT compiler has optimized the code, so headers and numbers
 * are written as words with few calls.
 */
export class AttributeWriter {
  readonly out: ByteWriter
  /** Start positions of the attributes that are still open. */
  readonly #open: number[] = []

  constructor(out: ByteWriter) {
    this.out = out
  }

  /** Begins an attribute; everything written until `close` is its payload. */
  open(type: number): void {
    if (this.#open.length >= NESTING_MAX) throw unencodable(`attribute ${type} is nested too deep`)
    this.#open.push(this.out.length)
    this.#header(type)
  }

  openNest(type: number): void {
    this.open(type | NLA_F_NESTED)
  }

  close(): void {
    const start = this.#open.pop()
    if (start === undefined) throw unencodable('an attribute is closed that was never opened')
    this.#end(start)
  }

  /** Closes an attribute; one without a payload is taken back. */
  closeFilled(): void {
    const start = this.#open.at(-1)
    const isFilled = start === undefined || this.out.length > start + NLA_HDRLEN
    this.close()
    if (!isFilled) this.out.length = start
  }

  /** Appends an attribute of `bytes` (4 at most) whose payload, in host order, is `value`. */
  word(type: number, bytes: number, value: number): void {
    const { out } = this
    if (out.bytes.length - out.length < 8) out.reserve(8)
    const at = out.length >> 2
    out.words[at] = (type << 16) | (NLA_HDRLEN + bytes)
    out.words[at + 1] = value
    out.length += 8
  }

  u32be(type: number, value: number): void {
    this.word(type, 4, swap32(value))
  }

  /** Appends bytes, padded with zeros to `length`. */
  octets(type: number, value: Octets, length: number = value.length): void {
    const { out } = this
    const start = out.length
    this.#header(type)
    out.octets(value)
    if (length > value.length) out.zeros(length - value.length)
    this.#end(start)
  }

  /** Appends a C string: UTF-8 and a NUL. */
  string(type: number, value: string): void {
    if (value.includes('\0')) throw unencodable(`a name with a NUL: ${JSON.stringify(value)}`)
    const start = this.out.length
    this.#header(type)
    this.out.utf8(value)
    this.out.u8(0)
    this.#end(start)
  }

  /** Begins an attribute; `close` writes its length. */
  #header(type: number): void {
    const { out } = this
    if (out.bytes.length - out.length < NLA_HDRLEN) out.reserve(NLA_HDRLEN)
    out.words[out.length >> 2] = type << 16
    out.length += NLA_HDRLEN
  }

  #end(start: number): void {
    const { out } = this
    const end = out.length
    // The attribute that was opened first is the longest.
    const outermost = this.#open[0] ?? start
    if (end - outermost > ATTRIBUTE_LENGTH_MAX) {
      this.#open.length = 0
      throw unencodable(`an attribute of ${end - outermost} bytes is longer than ${ATTRIBUTE_LENGTH_MAX}`)
    }
    out.view.setUint16(start, end - start, true)
    out.align()
  }
}

/** Returns a 32-bit number with its bytes in the other order. */
export function swap32(value: number): number {
  return (value << 24) | ((value & 0xff00) << 8) | ((value >>> 8) & 0xff00) | (value >>> 24)
}

/**
 * Calls `visit` for each attribute between `start` and `end`, with NLA_F_* masked off the type. Throws NetlinkError
 * at a length that is shorter than a header or exceeds `end`; every step advances by four bytes at least.
 */
export function forEachAttribute(
  view: ByteView,
  start: number,
  end: number,
  visit: (type: number, start: number, end: number) => void,
): void {
  for (let at = start; at < end; ) {
    const length = attributeLength(view, at, end)
    visit(attributeType(view, at), at + NLA_HDRLEN, at + length)
    at += (length + 3) & ~3
  }
}

/** Returns the length of the attribute at `at`, with its header; throws NetlinkError where it does not end before `end`. */
export function attributeLength(view: ByteView, at: number, end: number): number {
  if (end - at < NLA_HDRLEN) throw malformed(`${end - at} stray bytes after the attributes`, at)
  const length = view.data.getUint16(at, true)
  if (length < NLA_HDRLEN || length > end - at) throw malformed(`an attribute of ${length} bytes`, at)
  return length
}

/** Returns the type of the attribute at `at`, without NLA_F_*. */
export function attributeType(view: ByteView, at: number): number {
  return view.data.getUint16(at + 2, true) & NLA_TYPE_MASK
}
