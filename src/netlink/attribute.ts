import type { Octets } from '../base/octets.ts'
import type { ByteView, ByteWriter } from './bytes.ts'
import { NLA_F_NESTED, NLA_F_NET_BYTEORDER, NLA_HDRLEN } from './constants.ts'
import { malformed, unencodable } from './errors.ts'

/** nla_len has 16 bits and counts its own header. */
export const ATTRIBUTE_LENGTH_MAX = 0xffff
/** Nests within a message; the deepest that nf_tables makes is six. */
export const NESTING_MAX = 8

/** Appends attributes; refuses to build one whose length, or whose parents' length, does not fit. */
export class AttributeWriter {
  readonly out: ByteWriter
  readonly #open: number[] = []

  constructor(out: ByteWriter) {
    this.out = out
  }

  /** Begins an attribute; everything written until `close` is its payload. */
  open(type: number): void {
    if (this.#open.length >= NESTING_MAX) throw unencodable(`attribute ${type} is nested too deep`)
    this.#open.push(this.out.length)
    this.out.u16(0)
    this.out.u16(type)
  }

  openNest(type: number): void {
    this.open(type | NLA_F_NESTED)
  }

  close(): void {
    const end = this.out.length
    // No other is longer than the one that was opened first.
    const outermost = this.#open[0] ?? end
    if (end - outermost > ATTRIBUTE_LENGTH_MAX) {
      this.#open.length = 0
      throw unencodable(`an attribute of ${end - outermost} bytes is longer than ${ATTRIBUTE_LENGTH_MAX}`)
    }
    const start = this.#open.pop()
    if (start === undefined) throw unencodable('an attribute is closed that was never opened')
    this.out.patchU16(start, end - start)
    this.out.align()
  }

  u32be(type: number, value: number): void {
    this.open(type)
    this.out.u32be(value)
    this.close()
  }

  octets(type: number, value: Octets): void {
    this.open(type)
    this.out.octets(value)
    this.close()
  }

  /** A C string: UTF-8 and a NUL. */
  string(type: number, value: string): void {
    if (value.includes('\0')) throw unencodable(`a name with a NUL: ${JSON.stringify(value)}`)
    this.open(type)
    this.out.utf8(value)
    this.out.u8(0)
    this.close()
  }
}

/** Where an attribute's payload lies in a datagram. */
export interface AttributeSpan {
  readonly type: number
  readonly start: number
  readonly end: number
}

/**
 * Calls `visit` for each attribute between `start` and `end`, with NLA_F_* masked off the type. Throws NetlinkError
 * at a length that is shorter than a header or leads outside; every step moves on by four bytes at least.
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
    const type = view.data.getUint16(at + 2, true) & ~(NLA_F_NESTED | NLA_F_NET_BYTEORDER)
    visit(type, at + NLA_HDRLEN, at + length)
    at += (length + 3) & ~3
  }
}
