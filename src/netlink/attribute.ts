import type { Octets } from '../base/octets.ts'
import { NLA_F_NESTED, NLA_HDRLEN, NLA_TYPE_MASK } from './constants.ts'
import { malformed, unencodable } from './errors.ts'

/** From this length on, one call into the runtime writes octets faster than a loop. */
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

function swap32(value: number): number {
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

/**
 * Writes and reads the payload of one attribute. `read` gets the bounds of the payload, already checked against the
 * datagram, and the nesting depth; it throws NetlinkError for an invalid payload.
 */
export interface Codec<T> {
  write(out: AttributeWriter, type: number, value: T): void
  read(view: ByteView, start: number, end: number, depth: number): T
}

/** A number of one, two or four bytes: with its padding, the payload is one word. */
export interface WordCodec extends Codec<number> {
  readonly bytes: 1 | 2 | 4
  readonly order: 'host' | 'network'
  readonly min: number
  readonly max: number
}

function wordCodec(bytes: WordCodec['bytes'], order: WordCodec['order'], isSigned = false): WordCodec {
  const span = 2 ** (bytes * 8)
  const [min, max] = isSigned ? [-span / 2, span / 2 - 1] : [0, span - 1]
  const codec: WordCodec = {
    bytes,
    order,
    min,
    max,
    write: (out, type, value) => out.word(type, bytes, wordOf(codec, value)),
    read(view, start, end) {
      exactly(bytes, start, end)
      const isLittle = order === 'host'
      if (bytes === 1) return view.data.getUint8(start)
      if (bytes === 2) return view.data.getUint16(start, isLittle)
      return isSigned ? view.data.getInt32(start, isLittle) : view.data.getUint32(start, isLittle)
    },
  }
  return codec
}

/** Returns the payload of a number as a word in host order. Throws NetlinkError for a number out of range. */
export function wordOf({ bytes, order, min, max }: WordCodec, value: number): number {
  // For a value that is not a 32-bit integer, the bits are a different number.
  if ((min < 0 ? value | 0 : value >>> 0) !== value || value < min || value > max)
    throw unencodable(`${value} is not in ${min}..${max}`)
  if (order === 'host' || bytes === 1) return value
  return bytes === 2 ? (value >> 8) | ((value & 0xff) << 8) : swap32(value)
}

function exactly(bytes: number, start: number, end: number): void {
  if (end - start !== bytes) throw malformed(`a number of ${end - start} bytes instead of ${bytes}`, start)
}

/** A number of one byte. */
export const u8: Codec<number> = wordCodec(1, 'host')
/** A number of two bytes in network order. */
export const u16be: Codec<number> = wordCodec(2, 'network')
/** A number of two bytes in host order. */
export const u16host: Codec<number> = wordCodec(2, 'host')
/** A number of four bytes in network order. */
export const u32be: Codec<number> = wordCodec(4, 'network')
/** A signed number of four bytes in network order. */
export const s32be: Codec<number> = wordCodec(4, 'network', true)
/** A number of four bytes in host order, as in netlink's own attributes. */
export const u32host: Codec<number> = wordCodec(4, 'host')

const U64_MAX = 0xffff_ffff_ffff_ffffn

function wideCodec(order: WordCodec['order']): Codec<bigint> {
  return {
    write(out, type, value) {
      if (value < 0n || value > U64_MAX) throw unencodable(`${value} is not in 0..${U64_MAX}`)
      out.open(type)
      if (order === 'host') out.out.u64(value)
      else out.out.u64be(value)
      out.close()
    },
    read(view, start, end) {
      exactly(8, start, end)
      return view.data.getBigUint64(start, order === 'host')
    },
  }
}

/** A number of eight bytes in network order. */
export const u64be: Codec<bigint> = wideCodec('network')

/** A number of eight bytes in host order. */
export const u64host: Codec<bigint> = wideCodec('host')

/** A C string in UTF-8; bytes after the first NUL are not part of it. */
export const string: Codec<string> = {
  write: (out, type, value) => out.string(type, value),
  read(view, start, end) {
    const nul = view.bytes.indexOf(0, start)
    if (nul < start || nul >= end) throw malformed('a string without its NUL', start)
    return view.bytes.toString('utf8', start, nul)
  },
}

export interface OctetsCodec extends Codec<Octets> {
  /** Shorter values are padded with zeros to this length. */
  readonly padTo: number
}

const plainOctets: OctetsCodec = {
  padTo: 0,
  write: (out, type, value) => out.octets(type, value),
  read: (view, start, end) => view.bytes.toString('latin1', start, end),
}

/** Bytes, unchanged. */
export const octets: Codec<Octets> = plainOctets

/** Returns a codec of a fixed number of bytes; shorter values are padded with zeros. */
export function paddedOctets(length: number): OctetsCodec {
  return {
    padTo: length,
    write: (out, type, value) => out.octets(type, value, length),
    read(view, start, end) {
      if (end - start !== length) throw malformed(`${end - start} bytes instead of ${length}`, start)
      return view.bytes.toString('latin1', start, end)
    },
  }
}

/** The payload of a nest, kept as bytes. */
export const nestedOctets: Codec<Octets> = {
  write: (out, type, value) => out.octets(type | NLA_F_NESTED, value),
  read: (view, start, end) => view.bytes.toString('latin1', start, end),
}

/** An attribute without a payload; its presence means true. */
export const flag: Codec<true> = {
  write(out, type) {
    out.open(type)
    out.close()
  },
  read(_view, start, end) {
    exactly(0, start, end)
    return true
  },
}
