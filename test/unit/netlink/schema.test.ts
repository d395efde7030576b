import { describe, expect, it } from 'vitest'
import { AttributeWriter, ByteWriter, viewOf } from '../../../src/netlink/attribute.ts'
import {
  type Codec,
  flag,
  octets,
  s32be,
  string,
  u8,
  u16be,
  u16host,
  u32be,
  u32host,
  u64be,
  u64host,
} from '../../../src/netlink/codecs.ts'
import { NetlinkError } from '../../../src/netlink/errors.ts'
import {
  type AttributeSet,
  type Attributes,
  attributeSet,
  type Fields,
  listOf,
  nested,
  readAttributes,
  type SourcesOf,
  unionOf,
  type ValuesOf,
  writeAttributes,
  writerOf,
} from '../../../src/netlink/schema.ts'
import { written } from '../../support/scripted-transport.ts'

const POINT = attributeSet({ x: [1, u32be], y: [2, s32be] })
const CIRCLE = attributeSet({ radius: [1, u16be] })
const LABEL = attributeSet({ text: [1, string] })
const SHAPES = { circle: CIRCLE, label: LABEL } as const
const SHAPE = unionOf({ tag: [1, string], data: [2, octets] }, SHAPES)
const DRAWING = attributeSet({
  name: [1, string],
  origin: [2, nested(POINT)],
  points: [3, listOf(1, nested(POINT))],
  shape: [4, SHAPE],
  closed: [5, flag],
  weight: [6, u64be],
  level: [7, u8],
  host: [8, u32host],
  blob: [9, octets],
  short: [10, u16host],
  long: [11, u64host],
})

function encode<F extends Fields>(set: AttributeSet<F>, values: Attributes<F>): Buffer {
  return Buffer.from(written(out => writeAttributes(out, set, values)))
}

function decode<F extends Fields>(set: AttributeSet<F>, bytes: Buffer): Attributes<F> {
  return readAttributes(viewOf(bytes), set, { start: 0, end: bytes.length })
}

const FULL: ValuesOf<typeof DRAWING> = {
  name: 'plan',
  origin: { x: 1, y: -2 },
  points: [{ x: 3, y: 4 }, {}],
  shape: { tag: 'circle', data: { radius: 7 } },
  closed: true,
  weight: 0xffff_ffff_ffff_ffffn,
  level: 255,
  host: 0xdeadbeef,
  blob: '\0\xff',
  short: 0xfffe,
  long: 0xffff_ffff_ffff_fffen,
}

describe('an attribute table', () => {
  it('decodes what it encoded', () => {
    expect(decode(DRAWING, encode(DRAWING, FULL))).toEqual(FULL)
  })

  it('writes attributes in the order of the table, and none for absent fields', () => {
    expect(encode(DRAWING, { level: 1, name: 'a', host: undefined }).toString('hex')).toBe(
      '0600010061000000' + '0500070001000000',
    )
  })

  it('writes numbers of the host with their low byte first', () => {
    expect(encode(DRAWING, { short: 0x0102, long: 0x0102_0304_0506_0708n }).toString('hex')).toBe(
      '06000a0002010000' + '0c000b000807060504030201',
    )
  })

  it('skips attributes that it does not know and takes the last of repeated ones', () => {
    const unknown = '08006300aabbccdd'
    const level = (value: string) => `05000700${value}000000`
    expect(decode(DRAWING, Buffer.from(level('01') + unknown + level('02'), 'hex'))).toEqual({ level: 2 })
  })

  it('keeps the bytes of a union whose tag has no table', () => {
    const shape = { tag: 'unknown', name: 'spline', octets: '\x01\x02\x03' } as const
    expect(decode(DRAWING, encode(DRAWING, { shape }))).toEqual({ shape })
    expect(SHAPE.asOctets({ tag: 'circle', data: { radius: 1 } })).toEqual({
      name: 'circle',
      octets: '\x06\0\x01\0\0\x01\0\0',
    })
  })

  it.each([
    ['a number of the wrong size', '0600070001020000'],
    ['a flag with a payload', '0500050001000000'],
    ['a string without a NUL', '0600010061620000'],
  ])('refuses %s', (_, hex) => {
    expect(() => decode(DRAWING, Buffer.from(hex, 'hex'))).toThrow(NetlinkError)
  })

  it.each([
    [{ level: 256 }],
    [{ level: -1 }],
    [{ level: 0.5 }],
    [{ host: 2 ** 32 }],
    [{ weight: -1n }],
    [{ weight: 1n << 64n }],
    [{ short: 0x1_0000 }],
    [{ long: -1n }],
    [{ long: 1n << 64n }],
    [{ origin: { y: 2 ** 31 } }],
    [{ shape: { tag: 'circle', data: { radius: 65_536 } } }],
  ] as const)('refuses to write %o', values => {
    expect(() => encode(DRAWING, values)).toThrow(NetlinkError)
  })

  it('refuses a table that is nested deeper than any real message', () => {
    let codec: Codec<unknown> = nested(POINT)
    for (let i = 0; i < 12; i++) codec = nested(attributeSet({ inner: [1, codec] }))
    const deep = attributeSet({ inner: [1, codec] })
    let bytes = ''
    for (let depth = 0; depth < 100; depth++) {
      const length = bytes.length / 2 + 4
      bytes = `${Buffer.of(length & 255, length >> 8, 1, 128).toString('hex')}${bytes}`
    }
    expect(() => decode(deep, Buffer.from(bytes, 'hex'))).toThrow(/nested too deep/)
  })
})

describe('the inferred types', () => {
  it('do not let misspelt or mistyped fields compile', () => {
    // @ts-expect-error: there is no field `z`
    const misspelt: ValuesOf<typeof POINT> = { z: 1 }
    // @ts-expect-error: `x` is a number
    const mistyped: ValuesOf<typeof POINT> = { x: '1' }
    // @ts-expect-error: a point of the list has no `z`
    const inList: ValuesOf<typeof DRAWING> = { points: [{ x: 1, z: 2 }] }
    // @ts-expect-error: a circle has a radius, not a text
    const wrongVariant: ValuesOf<typeof DRAWING> = { shape: { tag: 'circle', data: { text: 'x' } } }
    // @ts-expect-error: there is no such shape
    const noVariant: ValuesOf<typeof DRAWING> = { shape: { tag: 'square', data: {} } }
    // @ts-expect-error: `decode` gives no field `z` to read
    const unread = decode(POINT, Buffer.alloc(0)).z
    // @ts-expect-error: the second half of a field is a codec
    const noCodec = attributeSet({ x: [1, 'u32'] })
    expect([misspelt, mistyped, inList, wrongVariant, noVariant, unread, noCodec]).toHaveLength(7)
  })
})

describe('a compiled writer', () => {
  interface Plan {
    readonly title?: string
    readonly left?: number
    readonly top?: number
    readonly bytes?: string
  }
  const SOURCES: SourcesOf<typeof DRAWING, Plan> = {
    // The table's order counts, not this one.
    blob: ({ bytes }) => bytes,
    name: ({ title }) => title,
    origin: { x: ({ left }) => left, y: ({ top }) => top },
  }

  it('writes octets of any length, alone in a nest or not', () => {
    const BOX = attributeSet({
      inside: [1, nested(attributeSet({ bytes: [2, octets] }))],
      outside: [3, octets],
    })
    const same = (text: unknown): string => String(text)
    const write = writerOf(BOX, { inside: { bytes: same }, outside: same })
    for (const length of [0, 1, 3, 4, 63, 64, 65, 300]) {
      const text = 'x'.repeat(length)
      const out = new ByteWriter(1)
      out.bytes.fill(0xee)
      write(new AttributeWriter(out), text)
      expect(Buffer.from(out.written())).toEqual(encode(BOX, { inside: { bytes: text }, outside: text }))
    }
    const tooLong = 'x'.repeat(0xffff)
    expect(() => write(new AttributeWriter(new ByteWriter(16)), tooLong)).toThrow(NetlinkError)
  })

  it('refuses numbers that do not fit', () => {
    const write = writerOf(CIRCLE, { radius: (radius: unknown) => Number(radius) })
    for (const radius of [-1, 65_536, 1.5, Number.NaN])
      expect(() => write(new AttributeWriter(new ByteWriter(16)), radius)).toThrow(/is not in 0..65535/)
  })

  it.each<[Plan, ValuesOf<typeof DRAWING>]>([
    [
      { title: 'plan', left: 1, top: -2, bytes: 'b' },
      { name: 'plan', origin: { x: 1, y: -2 }, blob: 'b' },
    ],
    [{ top: 7 }, { origin: { y: 7 } }],
    [
      { title: 'no place', bytes: '' },
      { name: 'no place', blob: '' },
    ],
    [{}, {}],
  ])('writes what the table writes, without nests that are empty', (plan, values) => {
    const out = new ByteWriter(16)
    writerOf(DRAWING, SOURCES)(new AttributeWriter(out), plan)
    expect(Buffer.from(out.written())).toEqual(encode(DRAWING, values))
  })
})
