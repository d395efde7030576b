import { describe, expect, it } from 'vitest'
import { WireError } from '../../../../src/base/errors.ts'
import { ProtobufDecoder } from '../../../../src/wire/protobuf/decoder.ts'
import {
  bool,
  converted,
  entries,
  given,
  int32,
  int64,
  list,
  message,
  name,
  shared,
  table,
  text,
} from '../../../../src/wire/protobuf/table.ts'

const INNER = table({ a: [1, text] })
const TABLE = table({
  text: [1, text],
  number: [2, int32],
  long: [3, int64],
  flag: [4, bool],
  given: [5, given(bool)],
  converted: [6, converted(table({ seconds: [1, int64] }), ({ seconds = 0 }) => `at ${seconds}`)],
  list: [7, list(name)],
  inner: [8, message(INNER)],
  inners: [9, list(message(INNER))],
  map: [10, entries('k', 'other')],
})

function decode(...bytes: readonly number[]): unknown {
  const padded = Buffer.from([0xff, ...bytes, 0x7f, 0x7f])
  return new ProtobufDecoder().decode(TABLE, { bytes: padded, start: 1, end: padded.length - 2 })
}

const VARINT_MAX = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]

describe('a message', () => {
  it('has the fields that the table names', () => {
    expect(decode(0x0a, 1, 0x78, 0x10, 0x96, 0x01, 0x20, 1, 0x28, 0)).toEqual({
      text: 'x',
      number: 150,
      flag: true,
      given: false,
    })
    expect(decode(0x3a, 1, 0x61, 0x3a, 0, 0x42, 3, 0x0a, 1, 0x62, 0x4a, 0, 0x4a, 3, 0x0a, 1, 0x63)).toEqual({
      list: ['a', ''],
      inner: { a: 'b' },
      inners: [{}, { a: 'c' }],
    })
  })

  it('has no field for what is empty, unless that says something', () => {
    expect(decode(0x0a, 0, 0x10, 0, 0x20, 0, 0x32, 0)).toEqual({})
    expect(Object.keys(Object(decode(0x0a, 0, 0x10, 0)))).toEqual([])
  })

  it('has whole numbers of 32 and 64 bits, below zero too', () => {
    expect(decode(0x10, ...VARINT_MAX)).toEqual({ number: -1 })
    expect(decode(0x10, 0x80, 0x80, 0x80, 0x80, 0xf8, 0xff, 0xff, 0xff, 0xff, 0x01)).toEqual({
      number: -(2 ** 31),
    })
    expect(decode(0x18, ...VARINT_MAX)).toEqual({ long: -1 })
    expect(decode(0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x0f)).toEqual({ long: 2 ** 53 - 1 })
    expect(decode(0x20, 0x80, 0x80, 0x80, 0x80, 0x10)).toEqual({ flag: true })
  })

  it('has the values that messages are converted to, none for an empty one', () => {
    expect(decode(0x32, 2, 0x10, 0)).toEqual({ converted: 'at 0' })
    expect(decode(0x32, 11, 0x08, ...VARINT_MAX)).toEqual({ converted: 'at -1' })
    expect(decode(0x32, 0)).toEqual({})
  })

  it('has of a map what is asked for', () => {
    const entry = [0x52, 6, 0x0a, 1, 0x6b, 0x12, 1, 0x76]
    const foreign = [0x52, 6, 0x0a, 1, 0x6c, 0x12, 1, 0x76]
    expect(decode(...foreign, ...entry, ...foreign)).toEqual({ map: { k: 'v' } })
    expect(decode(...foreign)).toEqual({})
    expect(decode(0x52, 3, 0x0a, 1, 0x6b)).toEqual({ map: { k: '' } })
    expect(decode(0x52, 8, 0x18, 1, 0x12, 1, 0x76, 0x0a, 1, 0x6b)).toEqual({ map: { k: 'v' } })
  })

  it('is one value for equal bytes where many messages repeat it, and none of another table', () => {
    const long = table({ a: [1, text] })
    const both = table({ one: [1, list(shared(INNER))], other: [2, shared(long)] })
    const decoder = new ProtobufDecoder()
    const read = (...fields: readonly (readonly [number, string])[]) => {
      const parts = fields.map(([number, a]) => {
        const inner = Buffer.concat([Buffer.from([0x0a, a.length]), Buffer.from(a)])
        return Buffer.concat([Buffer.from([number * 8 + 2, inner.length]), inner])
      })
      const bytes = Buffer.concat(parts)
      return decoder.decode(both, { bytes, start: 0, end: bytes.length })
    }
    const first = read([1, 'x'], [1, 'y'])
    const second = read([1, 'y'], [2, 'x'], [1, 'z'.repeat(100)])
    expect(first.one).toEqual([{ a: 'x' }, { a: 'y' }])
    expect(second).toEqual({ one: [{ a: 'y' }, { a: 'z'.repeat(100) }], other: { a: 'x' } })
    expect(second.one?.[0]).toBe(first.one?.[1])
    expect(second.other).not.toBe(first.one?.[0])
  })

  it('reads text that is not UTF-8 as Go writes it in JSON, so it cannot stop a stream', () => {
    expect(decode(0x0a, 2, 0x61, 0xff)).toEqual({ text: 'a\ufffd' })
    expect(decode(0x3a, 2, 0x61, 0xff)).toEqual({ list: ['a\ufffd'] })
    expect(decode(0x0a, 1, 0)).toEqual({ text: '\u0000' })
    expect(decode(0x0a, 2, 0xc3, 0xa4)).toEqual({ text: 'ä' })
  })

  it('is passed over where the table knows nothing, or another wire type', () => {
    const known = [0x0a, 1, 0x78]
    const fields: readonly (readonly number[])[] = [
      [0xf8, 0x07, ...VARINT_MAX],
      [0xfa, 0x07, 2, 1, 2],
      [0xf9, 0x07, 1, 2, 3, 4, 5, 6, 7, 8],
      [0xfd, 0x07, 1, 2, 3, 4],
      [0xfb, 0x07, 0x0a, 1, 0x79, 0x13, 0x14, 0xfc, 0x07],
      [0x08, 5],
      [0x12, 1, 1],
    ]
    for (const field of fields) expect(decode(...field, ...known, ...field)).toEqual({ text: 'x' })
  })

  it('is refused when a field goes on behind it', () => {
    for (const bytes of [
      [0x0a],
      [0x0a, 1],
      [0x0a, 2, 0x78],
      [0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f],
      [0x0a, ...VARINT_MAX],
      [0x10],
      [0x10, 0x80],
      [0xfd, 0x07, 1, 2, 3],
      [0xf9, 0x07, 1, 2, 3, 4, 5, 6, 7],
      [0xfb, 0x07],
      [0xfb, 0x07, 0x0a, 1],
      [0x42, 2, 0x0a, 1, 0x61],
      [0x52, 3, 0x0a, 2, 0x6b],
    ])
      expect(() => decode(...bytes), `${bytes}`).toThrow(WireError)
  })

  it('is refused when a number has more than 64 bits', () => {
    expect(() => decode(0x10, ...VARINT_MAX.slice(0, 9), 0x02)).toThrow('more than 64 bits')
    expect(() => decode(0x10, ...VARINT_MAX.slice(0, 9), 0x81, 0x00)).toThrow('more than 64 bits')
  })

  it('is refused when groups are nested too deep, long before the stack is full', () => {
    const nested = (depth: number): number[] => [
      ...new Array<number>(depth).fill(0x7b),
      ...new Array<number>(depth).fill(0x7c),
    ]
    expect(decode(...nested(16))).toEqual({})
    expect(() => decode(...nested(17))).toThrow('nested deeper than 16')
    expect(() => decode(...nested(10_000))).toThrow(WireError)
  })
})
