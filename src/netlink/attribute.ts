import type { Octets } from '../base/octets.ts'
import type { ByteView, ByteWriter } from './bytes.ts'
import { NLA_F_NESTED, NLA_HDRLEN, NLA_TYPE_MASK } from './constants.ts'
import { malformed, unencodable } from './errors.ts'

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

/** Swaps the four bytes of `value`. */
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
  let at = start
  while (at < end) {
    if (end - at < NLA_HDRLEN) throw malformed(`${end - at} stray bytes after the attributes`, at)
    const length = view.data.getUint16(at, true)
    if (length < NLA_HDRLEN || length > end - at) throw malformed(`an attribute of ${length} bytes`, at)
    const type = view.data.getUint16(at + 2, true) & NLA_TYPE_MASK
    visit(type, at + NLA_HDRLEN, at + length)
    at += (length + 3) & ~3
  }
}
