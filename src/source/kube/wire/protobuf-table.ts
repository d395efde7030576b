/*
 * Messages of protobuf as tables: field name in the API's JSON form -> [field number, how it is read]. What a table does
 * not name is passed over.
 */

interface Fields {
  readonly [name: string]: readonly [number: number, shape: NumberShape | BytesShape]
}

export interface NumberShape {
  readonly kind: 'bool' | 'int32' | 'int64'
  readonly keepsEmpty: boolean
}

export type BytesShape = ElementShape | ListShape | EntriesShape
export type ElementShape = TextShape | MessageShape

interface TextShape {
  /**
   * A `name` is a string that many objects repeat; a `time` is a metav1.Time, which becomes RFC 3339 text; an
   * `int-or-string` is an intstr.IntOrString, which becomes a number or a text.
   */
  readonly kind: 'text' | 'name' | 'bytes' | 'time' | 'int-or-string'
  readonly keepsEmpty: boolean
}

interface MessageShape {
  readonly kind: 'message'
  readonly keepsEmpty: true
  readonly table: Table
}

interface ListShape {
  readonly kind: 'list'
  readonly of: ElementShape
}

/** The entries of a map from strings to strings with these keys; without keys, all entries. */
interface EntriesShape {
  readonly kind: 'entries'
  readonly keys: readonly string[] | undefined
}

/*
 * Go writes fields that are no pointers even when they are empty, and the JSON form leaves most of them out: so do
 * these. Pointers, and fields without omitempty, are `given`.
 */
export const text: TextShape = { kind: 'text', keepsEmpty: false }
export const name: TextShape = { kind: 'name', keepsEmpty: false }
export const bytes: TextShape = { kind: 'bytes', keepsEmpty: false }
export const time: TextShape = { kind: 'time', keepsEmpty: false }
export const intOrString: TextShape = { kind: 'int-or-string', keepsEmpty: true }
export const bool: NumberShape = { kind: 'bool', keepsEmpty: false }
export const int32: NumberShape = { kind: 'int32', keepsEmpty: false }
export const int64: NumberShape = { kind: 'int64', keepsEmpty: false }

/** The same, with '', 0 and false as values like any other. */
export function given<S extends NumberShape | TextShape>(shape: S): S {
  return { ...shape, keepsEmpty: true }
}

export function message(table: Table): MessageShape {
  return { kind: 'message', keepsEmpty: true, table }
}

export function list(of: ElementShape): ListShape {
  return { kind: 'list', of }
}

export function entries(...keys: readonly string[]): EntriesShape {
  return { kind: 'entries', keys }
}

export const allEntries: EntriesShape = { kind: 'entries', keys: undefined }

/** Wire types: https://protobuf.dev/programming-guides/encoding/#structure */
export const VARINT = 0
export const FIXED64 = 1
export const LENGTH = 2
export const GROUP_START = 3
export const GROUP_END = 4
export const FIXED32 = 5

type Column =
  | { readonly isNumber: true; readonly name: string; readonly shape: NumberShape }
  | { readonly isNumber: false; readonly name: string; readonly shape: BytesShape }

/** The fields by tag, which is number and wire type: a known field in another wire type is unknown. */
export interface Table {
  readonly byTag: readonly (Column | undefined)[]
}

export function table(fields: Fields): Table {
  const columns = Object.entries(fields).map(([name, [number, shape]]) => {
    const column = columnOf(name, shape)
    return { tag: number * 8 + (column.isNumber ? VARINT : LENGTH), column }
  })
  const room = 1 + Math.max(...columns.map(({ tag }) => tag))
  const byTag = new Array<Column | undefined>(room).fill(undefined)
  for (const { tag, column } of columns) byTag[tag] = column
  return { byTag }
}

function columnOf(name: string, shape: NumberShape | BytesShape): Column {
  return isNumberShape(shape) ? { isNumber: true, name, shape } : { isNumber: false, name, shape }
}

function isNumberShape(shape: NumberShape | BytesShape): shape is NumberShape {
  return shape.kind === 'bool' || shape.kind === 'int32' || shape.kind === 'int64'
}
