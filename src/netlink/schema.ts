import { octetsFromBytes } from '../base/octets.ts'
import {
  AttributeWriter,
  align4,
  attributeLength,
  attributeType,
  type ByteView,
  ByteWriter,
  forEachAttribute,
  NESTING_MAX,
} from './attribute.ts'
import type { Codec } from './codecs.ts'
import { NLA_HDRLEN, NLA_TYPE_MASK } from './constants.ts'
import { malformed } from './errors.ts'

/**
 * Attribute sets as tables: name → [attribute number, codec]. The type of the values, the encoder and the decoder all
 * come from the table. Only this file has casts; the table guarantees their types.
 */
export interface Fields {
  readonly [name: string]: Field<unknown>
}
export type Field<T> = readonly [attribute: number, codec: Codec<T>]

export interface AttributeSet<F extends Fields> {
  readonly fields: F
  readonly columns: readonly Column[]
  readonly byNumber: readonly (Column | undefined)[]
}

interface Column {
  readonly name: string
  readonly number: number
  readonly codec: Codec<unknown>
}

/** The values of an attribute set; an absent attribute is an absent (or undefined) field. */
export type Attributes<F extends Fields> = {
  readonly [K in keyof F]?: F[K] extends Field<infer T> ? T | undefined : never
}
/** The values of a table made with attributeSet. */
export type ValuesOf<S> = S extends AttributeSet<infer F> ? Attributes<F> : never

/** Creates the attribute set of a table. Numbers may contain NLA_F_*, which are written, and ignored when reading. */
export function attributeSet<const F extends Fields>(fields: F): AttributeSet<F> {
  const columns = Object.entries(fields).map(([name, [number, codec]]) => ({ name, number, codec }))
  const byNumber: (Column | undefined)[] = []
  for (const column of columns) byNumber[column.number & NLA_TYPE_MASK] = column
  return { fields, columns, byNumber }
}

/** Appends the attributes that `values` has, in the table's order. */
export function writeAttributes<F extends Fields>(
  out: AttributeWriter,
  set: AttributeSet<F>,
  values: Attributes<F>,
): void {
  const fields = values as Readonly<Record<string, unknown>>
  const { columns } = set
  for (let i = 0; i < columns.length; i++) {
    const column = columns[i]
    if (column === undefined) break
    const value = fields[column.name]
    if (value !== undefined) column.codec.write(out, column.number, value)
  }
}

/**
 * Reads the attributes between `start` and `end`. It skips unknown attributes; of repeated ones the last counts (as
 * in the kernel's nla_parse). Throws NetlinkError for anything else that the table does not allow.
 */
export function readAttributes<F extends Fields>(
  view: ByteView,
  set: AttributeSet<F>,
  span: { readonly start: number; readonly end: number; readonly depth?: number },
): Attributes<F> {
  const depth = span.depth ?? 0
  if (depth > NESTING_MAX) throw malformed('attributes are nested too deep', span.start)
  const values: Record<string, unknown> = {}
  for (let at = span.start; at < span.end; ) {
    const end = at + attributeLength(view, at, span.end)
    const column = set.byNumber[attributeType(view, at)]
    if (column !== undefined) values[column.name] = column.codec.read(view, at + NLA_HDRLEN, end, depth)
    at = align4(end)
  }
  return values as Attributes<F>
}

/** A codec of `nested`, with the attribute set that it writes. */
export interface NestedCodec<F extends Fields> extends Codec<Attributes<F>> {
  readonly set: AttributeSet<F>
}

/** Returns a codec for an attribute whose payload is another table's attributes. */
export function nested<F extends Fields>(set: AttributeSet<F>): NestedCodec<F> {
  return {
    set,
    write(out, type, value) {
      out.openNest(type)
      writeAttributes(out, set, value)
      out.close()
    },
    read: (view, start, end, depth) => readAttributes(view, set, { start, end, depth: depth + 1 }),
  }
}

/** Functions that read a table's values from a source. Nests have one per value, so that no object is created. */
type Sources<F extends Fields, S> = {
  readonly [K in keyof F]?: Source<F[K], S> | undefined
}
type Source<C, S> = C extends readonly [number, NestedCodec<infer G>]
  ? Sources<G, S>
  : C extends Field<infer T>
    ? (source: S) => T | undefined
    : never
/** Sources, for a table made with attributeSet. */
export type SourcesOf<T, S> = T extends AttributeSet<infer F> ? Sources<F, S> : never

/**
 * Makes the writer of a table for one kind of source, for objects that are written by the ten thousand: it needs no object
 * of values. It writes the same bytes as writeAttributes; a nest without values is omitted.
 */
export function writerOf<F extends Fields, S>(set: AttributeSet<F>, sources: Sources<F, S>): Writer<S> {
  const writers = set.columns.flatMap(column => {
    const source = sources[column.name] as Sources<Fields, S> | ((source: S) => unknown) | undefined
    return source === undefined ? [] : [columnWriter(column, source)]
  })
  return (out, source) => {
    for (const write of writers) write(out, source)
  }
}

function columnWriter<S>(
  { number, codec }: Column,
  source: Sources<Fields, S> | ((source: S) => unknown),
): Writer<S> {
  if (typeof source === 'function')
    return (out, from) => {
      const value = source(from)
      if (value !== undefined) codec.write(out, number, value)
    }
  const writeParts = writerOf((codec as NestedCodec<Fields>).set, source)
  return (out, from) => {
    out.openNest(number)
    writeParts(out, from)
    out.closeFilled()
  }
}

/** Returns a codec for a sequence of attributes that all have the number `item`. */
export function listOf<T>(item: number, codec: Codec<T>): Codec<readonly T[]> {
  return {
    write(out, type, values) {
      out.openNest(type)
      for (const value of values) codec.write(out, item, value)
      out.close()
    },
    read(view, start, end, depth) {
      const values: T[] = []
      forEachAttribute(view, start, end, (type, from, to) => {
        if (type === item) values.push(codec.read(view, from, to, depth + 1))
      })
      return values
    },
  }
}

export interface Variants {
  readonly [tag: string]: AttributeSet<Fields>
}

/** A value of a union: its tag selects the table of its data; a tag without a table keeps the data's bytes. */
export type Tagged<V extends Variants> =
  | { [K in keyof V & string]: { readonly tag: K; readonly data: ValuesOf<V[K]> } }[keyof V & string]
  | UnknownVariant

export interface UnknownVariant {
  readonly tag: 'unknown'
  readonly name: string
  readonly octets: string
}

/** The attributes of a union's two parts, and their codecs. */
export interface UnionFields {
  readonly tag: Field<string>
  readonly data: Field<string>
}

export interface UnionCodec<V extends Variants> extends Codec<Tagged<V>> {
  /** Returns the name and data that encode `value`. */
  asOctets(value: Tagged<V>): Omit<UnknownVariant, 'tag'>
}

/** Returns a codec for a nest of two attributes: the first names the table of the second (nft's expressions). */
export function unionOf<const V extends Variants>(fields: UnionFields, variants: V): UnionCodec<V> {
  const [tagNumber, tagCodec] = fields.tag
  const [dataNumber, octetsCodec] = fields.data
  const tables = new Map<string, Codec<unknown>>(
    Object.entries(variants).map(([tag, set]) => [tag, nested(set)]),
  )
  return {
    write(out, type, value) {
      const { tag, data, name, octets } = value as {
        tag: string
        data?: unknown
        name?: string
        octets?: string
      }
      out.openNest(type)
      tagCodec.write(out, tagNumber, name ?? tag)
      const table = tables.get(tag)
      if (table !== undefined) table.write(out, dataNumber, data)
      else octetsCodec.write(out, dataNumber, octets ?? '')
      out.close()
    },
    read(view, start, end, depth) {
      let tag = ''
      let data: readonly [start: number, end: number] = [end, end]
      forEachAttribute(view, start, end, (type, from, to) => {
        if (type === tagNumber) tag = tagCodec.read(view, from, to, depth)
        if (type === dataNumber) data = [from, to]
      })
      const table = tables.get(tag)
      const value =
        table === undefined
          ? { tag: 'unknown', name: tag, octets: octetsCodec.read(view, data[0], data[1], depth) }
          : { tag, data: table.read(view, data[0], data[1], depth + 1) }
      return value as Tagged<V>
    },
    asOctets(value) {
      if (value.tag === 'unknown') return value as UnknownVariant
      const { tag, data } = value as { tag: string; data: Attributes<Fields> }
      const set = variants[tag]
      const out = new ByteWriter(256)
      if (set !== undefined) writeAttributes(new AttributeWriter(out), set, data)
      return { name: tag, octets: octetsFromBytes(out.written()) }
    },
  }
}

/** Appends the attributes of a table from a source. */
export type Writer<S> = (out: AttributeWriter, source: S) => void
