import type { Octets } from '../base/octets.ts'
import type { AttributeWriter } from './attribute.ts'
import type { ByteView } from './bytes.ts'
import { NLA_F_NESTED } from './constants.ts'
import { malformed, unencodable } from './errors.ts'

/**
 * How one attribute's payload is written and read. `read` gets the payload's borders, already checked against the
 * datagram, and the number of nests around it; it throws NetlinkError for a payload that it does not accept.
 */
export interface Codec<T> {
  write(out: AttributeWriter, type: number, value: T): void
  read(view: ByteView, start: number, end: number, depth: number): T
}

function exactly(bytes: number, start: number, end: number): void {
  if (end - start !== bytes) throw malformed(`a number of ${end - start} bytes instead of ${bytes}`, start)
}

function inRange(value: number, from: number, to: number): void {
  if (!Number.isInteger(value) || value < from || value > to)
    throw unencodable(`${value} is not in ${from}..${to}`)
}

/** One byte. */
export const u8: Codec<number> = {
  write(out, type, value) {
    inRange(value, 0, 0xff)
    out.open(type)
    out.out.u8(value)
    out.close()
  },
  read(view, start, end) {
    exactly(1, start, end)
    return view.data.getUint8(start)
  },
}

/** In network order. */
export const u16be: Codec<number> = {
  write(out, type, value) {
    inRange(value, 0, 0xffff)
    out.open(type)
    out.out.u16be(value)
    out.close()
  },
  read(view, start, end) {
    exactly(2, start, end)
    return view.data.getUint16(start)
  },
}

/** In host order. */
export const u16host: Codec<number> = {
  write(out, type, value) {
    inRange(value, 0, 0xffff)
    out.open(type)
    out.out.u16(value)
    out.close()
  },
  read(view, start, end) {
    exactly(2, start, end)
    return view.data.getUint16(start, true)
  },
}

/** In network order. */
export const u32be: Codec<number> = {
  write(out, type, value) {
    inRange(value, 0, 0xffffffff)
    out.u32be(type, value)
  },
  read(view, start, end) {
    exactly(4, start, end)
    return view.data.getUint32(start)
  },
}

/** Signed, in network order. */
export const s32be: Codec<number> = {
  write(out, type, value) {
    inRange(value, -0x80000000, 0x7fffffff)
    out.u32be(type, value)
  },
  read(view, start, end) {
    exactly(4, start, end)
    return view.data.getInt32(start)
  },
}

/** In host order, as netlink's own attributes are. */
export const u32host: Codec<number> = {
  write(out, type, value) {
    inRange(value, 0, 0xffffffff)
    out.open(type)
    out.out.u32(value)
    out.close()
  },
  read(view, start, end) {
    exactly(4, start, end)
    return view.data.getUint32(start, true)
  },
}

const U64_MAX = 0xffff_ffff_ffff_ffffn

/** In network order. */
export const u64be: Codec<bigint> = {
  write(out, type, value) {
    if (value < 0n || value > U64_MAX) throw unencodable(`${value} is not in 0..${U64_MAX}`)
    out.open(type)
    out.out.u64be(value)
    out.close()
  },
  read(view, start, end) {
    exactly(8, start, end)
    return view.data.getBigUint64(start)
  },
}

/** In host order. */
export const u64host: Codec<bigint> = {
  write(out, type, value) {
    if (value < 0n || value > U64_MAX) throw unencodable(`${value} is not in 0..${U64_MAX}`)
    out.open(type)
    out.out.u64(value)
    out.close()
  },
  read(view, start, end) {
    exactly(8, start, end)
    return view.data.getBigUint64(start, true)
  },
}

/** A C string in UTF-8; what follows the first NUL is not part of it. */
export const string: Codec<string> = {
  write: (out, type, value) => out.string(type, value),
  read(view, start, end) {
    const nul = view.bytes.indexOf(0, start)
    if (nul < start || nul >= end) throw malformed('a string without its NUL', start)
    return view.bytes.toString('utf8', start, nul)
  },
}

/** Bytes as they are. */
export const octets: Codec<Octets> = {
  write: (out, type, value) => out.octets(type, value),
  read: (view, start, end) => view.bytes.toString('latin1', start, end),
}

/** The payload of a nest that is kept as it is. */
export const nestedOctets: Codec<Octets> = {
  write: (out, type, value) => out.octets(type | NLA_F_NESTED, value),
  read: (view, start, end) => view.bytes.toString('latin1', start, end),
}

/** An attribute that says yes by being there. */
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
