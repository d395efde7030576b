/*
 * Messages of protobuf as tables, for writing: field name -> [field number, how it is written]. Fields are written in the
 * order of their numbers and maps in the order of their keys, so that equal values are equal bytes. Empty texts, numbers
 * and lists are left out, as proto3 has it; a message that is there is written even when nothing is in it.
 */

interface MessageFields {
  readonly [name: string]: readonly [number: number, shape: Shape]
}

type Shape = SingleShape | { readonly kind: 'list'; readonly of: SingleShape } | { readonly kind: 'map' }
type SingleShape =
  | { readonly kind: 'text' }
  | { readonly kind: 'int' }
  | { readonly kind: 'bool' }
  | { readonly kind: 'message'; readonly table: MessageTable }

export const text = { kind: 'text' } as const
/** A number that is not negative, below 2^32. */
export const int = { kind: 'int' } as const
export const bool = { kind: 'bool' } as const
/** A map from strings to strings. */
export const map = { kind: 'map' } as const

export function message(table: MessageTable): SingleShape {
  return { kind: 'message', table }
}

export function list(of: SingleShape): Shape {
  return { kind: 'list', of }
}

interface Column {
  readonly name: string
  readonly number: number
  readonly shape: Shape
}

/** The columns in the order of their numbers. */
export type MessageTable = readonly Column[]

export function messageTable(fields: MessageFields): MessageTable {
  return Object.entries(fields)
    .map(([name, [number, shape]]) => ({ name, number, shape }))
    .sort((a, b) => a.number - b.number)
}

type Fields = Readonly<Record<string, unknown>>

const VARINT = 0
const LENGTH = 2
/** Initial size of the buffer for messages; it grows when one does not fit. */
const ROOM = 4_096

/** Puts messages together, one after the other, in one buffer. */
export class Encoder {
  #bytes = Buffer.alloc(ROOM)
  #at = 0

  /** The result is good until the next call. */
  encode(table: MessageTable, value: object): Buffer {
    this.#at = 0
    if (isFields(value)) this.#message(table, value)
    return this.#bytes.subarray(0, this.#at)
  }

  #message(table: MessageTable, value: Fields): void {
    for (let index = 0; index < table.length; index++) {
      const column = table[index]
      const field = column === undefined ? undefined : value[column.name]
      if (column === undefined || field === undefined) continue
      const { number, shape } = column
      if (shape.kind === 'list') {
        if (Array.isArray(field)) for (const item of field) this.#single(number, shape.of, item, true)
      } else if (shape.kind === 'map') this.#map(number, field)
      else this.#single(number, shape, field, false)
    }
  }

  #single(number: number, shape: SingleShape, value: unknown, keepsEmpty: boolean): void {
    if (shape.kind === 'message') {
      if (isFields(value)) this.#nested(number, () => this.#message(shape.table, value))
    } else if (shape.kind === 'text') {
      if (typeof value === 'string' && (keepsEmpty || value !== '')) this.#text(number, value)
    } else {
      const amount = Number(value)
      if (amount === 0 && !keepsEmpty) return
      this.#varint(number * 8 + VARINT)
      this.#varint(amount)
    }
  }

  #map(number: number, value: unknown): void {
    if (!isFields(value)) return
    for (const key of Object.keys(value).sort()) {
      const text = value[key]
      this.#nested(number, () => {
        this.#text(1, key)
        if (typeof text === 'string' && text !== '') this.#text(2, text)
      })
    }
  }

  #text(number: number, value: string): void {
    const length = Buffer.byteLength(value)
    this.#varint(number * 8 + LENGTH)
    this.#varint(length)
    this.#reserve(length)
    this.#bytes.write(value, this.#at)
    this.#at += length
  }

  /** The length goes in front: mostly it takes the one byte that is kept free for it. */
  #nested(number: number, write: () => void): void {
    this.#varint(number * 8 + LENGTH)
    const place = this.#at
    this.#reserve(1)
    this.#at++
    write()
    const length = this.#at - place - 1
    const more = varintLength(length) - 1
    this.#reserve(more)
    if (more > 0) this.#bytes.copyWithin(place + 1 + more, place + 1, this.#at)
    this.#at = place
    this.#varint(length)
    this.#at += length
  }

  #varint(value: number): void {
    this.#reserve(5)
    let rest = value
    while (rest > 0x7f) {
      this.#bytes[this.#at++] = (rest & 0x7f) | 0x80
      rest = Math.floor(rest / 128)
    }
    this.#bytes[this.#at++] = rest
  }

  #reserve(count: number): void {
    if (this.#at + count <= this.#bytes.length) return
    const larger = Buffer.alloc(Math.max(this.#bytes.length * 2, this.#at + count))
    this.#bytes.copy(larger, 0, 0, this.#at)
    this.#bytes = larger
  }
}

function varintLength(value: number): number {
  let length = 1
  for (let rest = value; rest > 0x7f; rest = Math.floor(rest / 128)) length++
  return length
}

function isFields(value: unknown): value is Fields {
  return typeof value === 'object' && value !== null
}
