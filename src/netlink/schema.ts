import { octetsFromBytes } from '../base/octets.ts'
import { AttributeWriter, forEachAttribute, NESTING_MAX } from './attribute.ts'
import { type ByteView, ByteWriter } from './bytes.ts'
import type { Codec } from './codec.ts'
import { malformed } from './errors.ts'

/**
 * Attribute sets as tables: name → [attribute number, codec]. The type of the values, the encoder and the decoder all
 * come from the table. This is the one file with casts: what they claim is what the table says.
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

/** The attribute set that a table describes. */
export function attributeSet<const F extends Fields>(fields: F): AttributeSet<F> {
  const columns = Object.entries(fields).map(([name, [number, codec]]) => ({ name, number, codec }))
  const byNumber: (Column | undefined)[] = []
  for (const column of columns) byNumber[column.number] = column
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
 * Reads the attributes between `start` and `end`. Unknown ones are skipped, of repeated ones the last counts (as in
 * the kernel's nla_parse). Throws NetlinkError for anything else that the table does not allow.
 */
export function readAttributes<F extends Fields>(
  view: ByteView,
  set: AttributeSet<F>,
  span: { readonly start: number; readonly end: number; readonly depth?: number },
): Attributes<F> {
  const depth = span.depth ?? 0
  if (depth > NESTING_MAX) throw malformed('attributes are nested too deep', span.start)
  const values: Record<string, unknown> = {}
  forEachAttribute(view, span.start, span.end, (type, start, end) => {
    const column = set.byNumber[type]
    if (column !== undefined) values[column.name] = column.codec.read(view, start, end, depth)
  })
  return values as Attributes<F>
}

/** An attribute whose payload is another table's attributes. */
export function nested<F extends Fields>(set: AttributeSet<F>): Codec<Attributes<F>> {
  return {
    write(out, type, value) {
      out.openNest(type)
      writeAttributes(out, set, value)
      out.close()
    },
    read: (view, start, end, depth) => readAttributes(view, set, { start, end, depth: depth + 1 }),
  }
}

/** An attribute whose payload is a sequence of attributes that all have the number `item`. */
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

/** A value of a union: its tag picks the table of its data; a tag without a table keeps the data's bytes. */
export type Tagged<V extends Variants> =
  | { [K in keyof V & string]: { readonly tag: K; readonly data: ValuesOf<V[K]> } }[keyof V & string]
  | UnknownVariant

export interface UnknownVariant {
  readonly tag: 'unknown'
  readonly name: string
  readonly octets: string
}

/** Where a union keeps its two halves, and how each is written. */
export interface UnionFields {
  readonly tag: Field<string>
  readonly data: Field<string>
}

export interface UnionCodec<V extends Variants> extends Codec<Tagged<V>> {
  /** The name and data that `value` is written as. */
  asOctets(value: Tagged<V>): Omit<UnknownVariant, 'tag'>
}

/** A nest of two attributes, of which the first names the table of the second (nft's expressions). */
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
