import { type Octets, readU16be, readU32host, u16be, u32host, zeros } from '../../base/octets.ts'

/**
 * Structures of xtables as tables: the position and the encoding of each field. Numbers are in host order
 * (little-endian) unless their name says otherwise.
 */
export interface Struct<F extends Fields> {
  /** Name of the match or target. */
  readonly name: string
  readonly revision: number
  /** Size in the kernel's dumps: that of the structure, rounded up to a multiple of 8 (XT_ALIGN). */
  readonly size: number
  readonly fields: F
}

export interface Fields {
  readonly [name: string]: FieldPlace
}

interface FieldPlace {
  readonly offset: number
  readonly length: number
}

export interface Field<T> extends FieldPlace {
  readonly put: (value: T) => Part
  /** Reads the field from the bytes of a whole structure. */
  readonly get: (info: Octets) => T
}

/** The bytes of one field. */
export interface Part {
  readonly offset: number
  readonly octets: Octets
}

export function u8(offset: number): Field<number> {
  return {
    offset,
    length: 1,
    put: value => ({ offset, octets: String.fromCharCode(value) }),
    get: info => info.charCodeAt(offset),
  }
}

export function u16(offset: number): Field<number> {
  return {
    offset,
    length: 2,
    put: value => ({ offset, octets: String.fromCharCode(value & 255, value >>> 8) }),
    get: info => info.charCodeAt(offset) | (info.charCodeAt(offset + 1) << 8),
  }
}

export function u16net(offset: number): Field<number> {
  return {
    offset,
    length: 2,
    put: value => ({ offset, octets: u16be(value) }),
    get: info => readU16be(info, offset),
  }
}

export function u32(offset: number): Field<number> {
  return {
    offset,
    length: 4,
    put: value => ({ offset, octets: u32host(value) }),
    get: info => readU32host(info, offset),
  }
}

export function bytes(offset: number, length: number): Field<Octets> {
  return {
    offset,
    length,
    put: octets => ({ offset, octets }),
    get: info => info.slice(offset, offset + length),
  }
}

/** Assembles the whole structure, with zeros between the parts. Parts come in the order of their offsets. */
export function layOut({ size }: { readonly size: number }, parts: readonly Part[]): Octets {
  let info = ''
  let at = 0
  for (const { offset, octets } of parts) {
    if (offset > at) info += NOTHING.slice(at - offset)
    info += octets
    at = offset + octets.length
  }
  return at < size ? info + NOTHING.slice(at - size) : info
}

/** Longer than any gap of a structure. */
const NOTHING = zeros(512)

/** Returns whether `info` has the structure's size and is zero wherever the table has no field. */
export function fits<F extends Fields>({ size, fields }: Struct<F>, info: Octets): boolean {
  if (info.length !== size) return false
  let at = 0
  for (const { offset, length } of Object.values(fields)) {
    if (!isZero(info, at, offset)) return false
    at = offset + length
  }
  return isZero(info, at, size)
}

export function isZero(info: Octets, from: number, to: number): boolean {
  for (let at = from; at < to; at++) if (info.charCodeAt(at) !== 0) return false
  return true
}

/** Encodes `text` in UTF-8. */
export function octetsOfText(text: string): Octets {
  return NON_ASCII.test(text) ? Buffer.from(text, 'utf8').toString('latin1') : text
}

/** Decodes UTF-8; undefined for invalid bytes. */
export function textOfOctets(octets: Octets): string | undefined {
  if (!NON_ASCII.test(octets)) return octets
  const text = Buffer.from(octets, 'latin1').toString('utf8')
  return octetsOfText(text) === octets ? text : undefined
}

const NON_ASCII = /[^\0-\x7f]/

/** Returns the bytes before the first NUL, or all of them. */
export function beforeNul(octets: Octets): Octets {
  const nul = octets.indexOf('\0')
  return nul < 0 ? octets : octets.slice(0, nul)
}
