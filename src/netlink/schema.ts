import { type Octets, octetsFromBytes } from '../base/octets.ts'
import {
  ATTRIBUTE_LENGTH_MAX,
  AttributeWriter,
  align4,
  attributeLength,
  attributeType,
  type ByteView,
  ByteWriter,
  forEachAttribute,
  NESTING_MAX,
} from './attribute.ts'
import { type Codec, type OctetsCodec, u8, type WordCodec, wordOf } from './codecs.ts'
import { NLA_F_NESTED, NLA_HDRLEN, NLA_TYPE_MASK } from './constants.ts'
import { malformed, unencodable } from './errors.ts'

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
 * Compiles the writer of a table for one kind of source, for objects that are written by the ten thousand. It writes
 * the same bytes as writeAttributes; a nest without values is omitted.
 */
export function writerOf<F extends Fields, S>(set: AttributeSet<F>, sources: Sources<F, S>): Writer<S> {
  return flatWriter(stepsOf(set, sources))
}

const nothing = (): undefined => undefined
const BORDER = {
  around: 0,
  word: u8 as WordCodec,
  codec: u8,
  padTo: 0,
  numberOf: nothing,
  octetsOf: nothing,
  valueOf: nothing,
} as const

function stepsOf<F extends Fields, S>(set: AttributeSet<F>, sources: Sources<F, S>): readonly Step<S>[] {
  return set.columns.flatMap(({ name, number, codec }): readonly Step<S>[] => {
    const source = sources[name] as Sources<Fields, S> | ((source: S) => never) | undefined
    if (source === undefined) return []
    if (typeof source !== 'function') {
      const inner = stepsOf((codec as NestedCodec<Fields>).set, source)
      const type = number | NLA_F_NESTED
      const [only] = inner
      if (only?.kind === 'octets' && only.around === 0 && inner.length === 1)
        return [{ ...only, around: type }]
      return [{ ...BORDER, kind: 'nest', type }, ...inner, { ...BORDER, kind: 'end', type }]
    }
    const pick = { numberOf: source, octetsOf: source, valueOf: source }
    const step = { ...BORDER, kind: 'other', type: number, codec, ...pick } as const
    if ('bytes' in codec) return [{ ...step, kind: 'number', word: codec as WordCodec }]
    return ['padTo' in codec ? { ...step, kind: 'octets', padTo: (codec as OctetsCodec).padTo } : step]
  })
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

/** One step of a writer; all steps have the same fields, so that one loop handles them. */
interface Step<S> {
  readonly kind: 'number' | 'octets' | 'other' | 'nest' | 'end'
  /** The attribute's type, with NLA_F_*. */
  readonly type: number
  /** For octets: the type of the nest that contains only them; 0 for none. */
  readonly around: number
  readonly word: WordCodec
  readonly codec: Codec<unknown>
  /** Length to which shorter octets are padded. */
  readonly padTo: number
  readonly numberOf: (source: S) => number | undefined
  readonly octetsOf: (source: S) => Octets | undefined
  readonly valueOf: (source: S) => unknown
}

/** The codec writes longer octets. */
const OCTETS_MAX = 64

/**
 * Compiles steps to a writer. Most of a full load is written before the JIT compiler has optimized the code. So one
 * loop with few calls writes numbers, octets and nests, which are nearly all of it, directly into the buffer.
 */
function flatWriter<S>(compiled: readonly Step<S>[]): Writer<S> {
  // One literal, so that all steps have one hidden class: V8 gives copies made with `...` several.
  const steps = compiled.map(
    (step): Step<S> => ({
      kind: step.kind,
      type: step.type,
      around: step.around,
      word: step.word,
      codec: step.codec,
      padTo: step.padTo,
      numberOf: step.numberOf,
      octetsOf: step.octetsOf,
      valueOf: step.valueOf,
    }),
  )
  const starts = new Array<number>(NESTING_MAX).fill(0)
  return (out, source) => {
    const buffer = out.out
    let depth = 0
    for (let i = 0; i < steps.length; i++) {
      const step = steps[i]
      if (step === undefined) break
      if (step.kind === 'octets') {
        const value = step.octetsOf(source)
        if (value === undefined) continue
        if (value.length > OCTETS_MAX) writeLong(out, step, value)
        else writeOctets(buffer, step, value)
      } else if (step.kind === 'number') {
        const value = step.numberOf(source)
        if (value === undefined) continue
        if (buffer.bytes.length - buffer.length < 8) buffer.reserve(8)
        const at = buffer.length >> 2
        buffer.words[at] = (step.type << 16) | (NLA_HDRLEN + step.word.bytes)
        buffer.words[at + 1] = wordOf(step.word, value)
        buffer.length += 8
      } else if (step.kind === 'nest') {
        if (buffer.bytes.length - buffer.length < NLA_HDRLEN) buffer.reserve(NLA_HDRLEN)
        starts[depth++] = buffer.length
        buffer.words[buffer.length >> 2] = step.type << 16
        buffer.length += NLA_HDRLEN
      } else if (step.kind === 'end') {
        const start = starts[--depth] ?? 0
        const length = buffer.length - start
        if (length > ATTRIBUTE_LENGTH_MAX) throw unencodable(`a nest of ${length} bytes`)
        // The type is already written, and the length is still 0.
        if (length > NLA_HDRLEN) buffer.view.setUint16(start, length, true)
        else buffer.length = start
      } else {
        const value = step.valueOf(source)
        if (value !== undefined) step.codec.write(out, step.type, value)
      }
    }
  }
}

function writeOctets<S>(buffer: ByteWriter, { type, around, padTo }: Step<S>, value: Octets): void {
  if (buffer.bytes.length - buffer.length < OCTETS_MAX + 12) buffer.reserve(OCTETS_MAX + 12)
  const { length } = value
  const { bytes, words } = buffer
  const size = NLA_HDRLEN + (length > padTo ? length : padTo)
  let at = buffer.length
  if (around !== 0) {
    words[at >> 2] = (around << 16) | (NLA_HDRLEN + ((size + 3) & ~3))
    at += NLA_HDRLEN
  }
  const end = (at + size + 3) & ~3
  // The padding; what the value and the header take is written over.
  words[(end >> 2) - 1] = 0
  words[at >> 2] = (type << 16) | size
  at += NLA_HDRLEN
  if (length < padTo) bytes.fill(0, at, end)
  let i = 0
  // Most octets are whole words, which take a quarter of the steps.
  for (; i + 4 <= length; i += 4, at += 4)
    words[at >> 2] =
      value.charCodeAt(i) |
      (value.charCodeAt(i + 1) << 8) |
      (value.charCodeAt(i + 2) << 16) |
      (value.charCodeAt(i + 3) << 24)
  for (; i < length; i++) bytes[at++] = value.charCodeAt(i)
  buffer.length = end
}

function writeLong<S>(out: AttributeWriter, { type, around, codec }: Step<S>, value: Octets): void {
  if (around !== 0) out.open(around)
  codec.write(out, type, value)
  if (around !== 0) out.close()
}
