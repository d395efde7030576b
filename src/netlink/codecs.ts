import type { Octets } from '../base/octets.ts'
import { type AttributeWriter, type ByteView, swap32 } from './attribute.ts'
import { NLA_F_NESTED } from './constants.ts'
import { malformed, unencodable } from './errors.ts'

/**
 * Writes and reads the payload of one attribute. `read` gets the bounds of the payload, already checked against the
 * datagram, and the nesting depth; it throws NetlinkError for an invalid payload.
 */
export interface Codec<T> {
  write(out: AttributeWriter, type: number, value: T): void
  read(view: ByteView, start: number, end: number, depth: number): T
}

type Order = 'host' | 'network'

/** A number of one, two or four bytes: with its padding, the payload is one word. */
function wordCodec(bytes: 1 | 2 | 4, order: Order, isSigned = false): Codec<number> {
  const span = 2 ** (bytes * 8)
  const [min, max] = isSigned ? [-span / 2, span / 2 - 1] : [0, span - 1]
  const isLittle = order === 'host'
  return {
    write(out, type, value) {
      // For a value that is not a 32-bit integer, the bits are a different number.
      if ((isSigned ? value | 0 : value >>> 0) !== value || value < min || value > max)
        throw unencodable(`${value} is not in ${min}..${max}`)
      if (isLittle || bytes === 1) out.word(type, bytes, value)
      else out.word(type, bytes, bytes === 2 ? (value >> 8) | ((value & 0xff) << 8) : swap32(value))
    },
    read(view, start, end) {
      exactly(bytes, start, end)
      if (bytes === 1) return view.data.getUint8(start)
      if (bytes === 2) return view.data.getUint16(start, isLittle)
      return isSigned ? view.data.getInt32(start, isLittle) : view.data.getUint32(start, isLittle)
    },
  }
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

function wideCodec(order: Order): Codec<bigint> {
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

/** Bytes, unchanged. */
export const octets: Codec<Octets> = {
  write: (out, type, value) => out.octets(type, value),
  read: (view, start, end) => view.bytes.toString('latin1', start, end),
}

/** Returns a codec of a fixed number of bytes; shorter values are padded with zeros. */
export function paddedOctets(length: number): Codec<Octets> {
  return {
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
