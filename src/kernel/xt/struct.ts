import { type Octets, readU16be, readU32host, u16be, u32host, zeros } from '../../base/octets.ts'
import type { NftFamily } from '../nft/state.ts'
import { compatHead } from './expressions.ts'

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
function layOut({ size }: { readonly size: number }, parts: readonly Part[]): Octets {
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
function fits<F extends Fields>({ size, fields }: Struct<F>, info: Octets): boolean {
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

/** Codec between a match or target as a value and its expression. */
export interface Codec<V> {
  readonly struct: Pick<Struct<Fields>, 'name' | 'revision'>
  /** Encodes the whole expression. Throws NetlinkError for a value that does not fit. */
  readonly write: (value: V, family: NftFamily) => Octets
  /** Decodes a structure; undefined where a value cannot represent it. */
  readonly read: (info: Octets, family: NftFamily) => V | undefined
}

export interface Ways<V, F> {
  /** Returns the parts in the order of their offsets. */
  readonly write: (value: V, fields: F, family: NftFamily) => readonly Part[]
  /** Decodes a structure of the right size. */
  readonly read: (info: Octets, fields: F, family: NftFamily) => V | undefined
}

export function structCodec<V, F extends Fields>(
  kind: 'match' | 'target',
  struct: Struct<F>,
  ways: Ways<V, F>,
): Codec<V> {
  const head = compatHead(kind, struct)
  const { fields } = struct
  return {
    struct,
    write: (value, family) => head + layOut(struct, ways.write(value, fields, family)),
    read: (info, family) => (fits(struct, info) ? ways.read(info, fields, family) : undefined),
  }
}

/** A structure of a match or target as it was read. */
export interface ReadStruct {
  readonly name: string
  readonly revision: number
  readonly info: Octets
}

/** Returns a decoder; it returns undefined for unknown names and revisions, and for options that the values lack. */
export function decoderOf<V>(
  codecs: readonly Pick<Codec<V>, 'struct' | 'read'>[],
): (one: ReadStruct, family: NftFamily) => V | undefined {
  const readers = new Map(codecs.map(({ struct, read }) => [`${struct.name} ${struct.revision}`, read]))
  return ({ name, revision, info }, family) => readers.get(`${name} ${revision}`)?.(info, family)
}

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
