import { BackwardWriter } from './encode-writer.ts'

/** How a value of the JSON form is written, without its tag; undefined and null are what Go calls the zero value. */
export interface Shape {
  readonly wireType: 0 | 2
  write(out: BackwardWriter, value: unknown): void
}

/**
 * JSON name -> [field number, shape, what Go has there]: `value` is written even when it is empty, `pointer` only when
 * it is there, `list` once for each element, `map` once for each key.
 */
export interface EncodeTable {
  readonly [name: string]: readonly [
    number: number,
    shape: Shape,
    holder?: 'value' | 'pointer' | 'list' | 'map',
  ]
}

export function isObject(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

interface Column {
  readonly name: string
  readonly number: number
  readonly shape: Shape
  readonly holder: 'value' | 'pointer' | 'list' | 'map'
}

/** The last field first: the writer goes backwards. */
function columnsOf(table: EncodeTable): readonly Column[] {
  return Object.entries(table)
    .map(([name, [number, shape, holder = 'value']]) => ({ name, number, shape, holder }))
    .sort((a, b) => b.number - a.number)
}

/** The fields in the order of their numbers, as Go writes them. */
function writeColumns(out: BackwardWriter, columns: readonly Column[], value: unknown): void {
  const fields = isObject(value) ? value : {}
  for (const { name, number, shape, holder } of columns) {
    const field = fields[name] ?? undefined
    if (holder === 'list') {
      const elements = Array.isArray(field) ? field : []
      for (let index = elements.length - 1; index >= 0; index--)
        writeField(out, number, shape, elements[index])
    } else if (holder === 'map') writeMap(out, number, shape, field)
    else if (holder === 'value' || field !== undefined) writeField(out, number, shape, field)
  }
}

function writeField(out: BackwardWriter, number: number, shape: Shape, value: unknown): void {
  const before = out.length
  shape.write(out, value)
  if (shape.wireType === 2) out.varint(out.length - before)
  out.varint(number * 8 + shape.wireType)
}

export const string: Shape = {
  wireType: 2,
  write: (out, value) => out.text(typeof value === 'string' ? value : ''),
}

export const bytes: Shape = {
  wireType: 2,
  write: (out, value) => out.bytes(value instanceof Uint8Array ? value : new Uint8Array()),
}

export const integer: Shape = {
  wireType: 0,
  write: (out, value) => out.varint(typeof value === 'number' ? value : 0),
}

export const boolean: Shape = { wireType: 0, write: (out, value) => out.varint(value === true ? 1 : 0) }

export function message(table: EncodeTable): Shape {
  const columns = columnsOf(table)
  return { wireType: 2, write: (out, value) => writeColumns(out, columns, value) }
}

const TIMESTAMP = message({ seconds: [1, integer], nanos: [2, integer] })

/** metav1.Time: whole seconds; the zero time has no bytes. */
export const time: Shape = {
  wireType: 2,
  write(out, value) {
    if (typeof value !== 'string') return
    const seconds = Math.floor(Date.parse(value) / 1000)
    TIMESTAMP.write(out, { seconds })
  },
}

const INT_OR_STRING = message({ type: [1, integer], intVal: [2, integer], strVal: [3, string] })

/** A number is written as such, a string as the name of a port. */
export const intOrString: Shape = {
  wireType: 2,
  write(out, value) {
    INT_OR_STRING.write(out, typeof value === 'string' ? { type: 1, strVal: value } : { intVal: value })
  },
}

/** What a wrapper around one field has in the JSON form: the field alone. */
export function wrapped(shape: Shape): Shape {
  return { wireType: 2, write: (out, value) => writeField(out, 1, shape, value) }
}

/** JSON within protobuf. */
export const jsonText: Shape = {
  wireType: 2,
  write: (out, value) => out.text(JSON.stringify(value)),
}

/** A map from strings, in the order of its keys. */
function writeMap(out: BackwardWriter, number: number, of: Shape, value: unknown): void {
  const map = isObject(value) ? value : {}
  const entry = message({ key: [1, string], value: [2, of] })
  for (const key of Object.keys(map).sort().reverse())
    writeField(out, number, entry, { key, value: map[key] })
}

/** The bytes of one message. */
export function encoded(table: EncodeTable, value: unknown): Buffer {
  const out = new BackwardWriter()
  message(table).write(out, value)
  return out.written()
}
