import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { decodeMessage } from '../../../../src/wire/protobuf/decoder.ts'
import { encodeMessage, ProtobufEncoder } from '../../../../src/wire/protobuf/encoder.ts'
import {
  allEntries,
  bool,
  bytes,
  converted,
  given,
  int32,
  int64,
  list,
  message,
  name,
  table,
  text,
} from '../../../../src/wire/protobuf/table.ts'
import { runs } from '../../../support/runs.ts'

const INNER = table({ text: [1, text], numbers: [2, given(int64)] })
const TABLE = table({
  map: [20, allEntries],
  text: [1, text],
  name: [2, given(name)],
  flag: [3, bool],
  given: [4, given(bool)],
  number: [5, int32],
  long: [600, given(int64)],
  raw: [7, bytes],
  inner: [8, message(INNER)],
  inners: [9, list(message(INNER))],
  texts: [10, list(text)],
})

const anyText = fc.oneof(fc.string({ unit: 'grapheme' }), fc.string({ minLength: 60, maxLength: 300 }))
const filled = anyText.filter(value => value !== '')
const long = fc.maxSafeInteger()
const inner = fc.record({ text: filled, numbers: long }, { requiredKeys: [] })
const anyMessage = fc.record(
  {
    map: fc.dictionary(
      filled.filter(key => key !== '__proto__'),
      anyText,
      { minKeys: 1, noNullPrototype: true },
    ),
    text: filled,
    name: anyText,
    flag: fc.constant(true),
    given: fc.boolean(),
    number: fc.integer().filter(value => value !== 0),
    long,
    raw: fc.uint8Array({ minLength: 1, maxLength: 300 }).map(value => Buffer.from(value)),
    inner,
    inners: fc.array(inner, { minLength: 1 }),
    texts: fc.array(anyText, { minLength: 1 }),
  },
  { requiredKeys: [] },
)

describe('a message', () => {
  it('is read as what it was when it was written', () => {
    const encoder = new ProtobufEncoder()
    fc.assert(
      fc.property(anyMessage, fc.integer({ min: 0, max: 9 }), (value, prefixBytes) => {
        const encoded = Buffer.from(encoder.encode(TABLE, value, prefixBytes)).subarray(prefixBytes)
        expect(decodeMessage(TABLE, encoded)).toEqual(value)
        expect(encodeMessage(TABLE, value)).toEqual(encoded)
      }),
      { numRuns: runs(300) },
    )
  })

  it('has its fields in the order of their numbers, and its entries in that of their keys', () => {
    const value = { map: { b: '', a: '1' }, text: 'x' }
    expect(encodeMessage(TABLE, value).toString('hex')).toBe('0a0178a201060a0161120131a201030a0162')
  })

  it('has no field for what is undefined or empty, unless that says something', () => {
    const value = { text: '', name: '', flag: false, given: false, number: 0, long: 0, raw: Buffer.alloc(0) }
    expect(encodeMessage(TABLE, value).toString('hex')).toBe('12002000c02500')
    expect(encodeMessage(TABLE, { text: undefined, inner: {}, inners: [{}] }).toString('hex')).toBe(
      '42004a00',
    )
  })

  it('has numbers below zero in ten bytes', () => {
    expect(encodeMessage(TABLE, { number: -1 }).toString('hex')).toBe('28ffffffffffffffffff01')
  })

  it('is not written where a field is only read', () => {
    const READ = table({ its: [1, converted(INNER, ({ text = '' }) => text.length)] })
    expect(() => encodeMessage(READ, { its: 3 })).toThrow('converted messages are only read')
  })
})
