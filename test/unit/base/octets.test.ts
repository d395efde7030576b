import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import {
  bytesFromOctets,
  hex,
  octetsFromBytes,
  readU16be,
  readU32be,
  readU32host,
  u16be,
  u32be,
  u32host,
  zeros,
} from '../../../src/base/octets.ts'

const numbers = fc.oneof(fc.nat(0xffffffff), fc.constantFrom(0, 1, 0x7fffffff, 0x80000000, 0xffffffff))

describe('octets', () => {
  test('hold any bytes unchanged', () => {
    fc.assert(
      fc.property(fc.uint8Array(), bytes => {
        const octets = octetsFromBytes(bytes)
        expect(octets).toHaveLength(bytes.length)
        expect([...bytesFromOctets(octets)]).toEqual([...bytes])
        expect(hex(octets)).toBe([...bytes].map(byte => byte.toString(16).padStart(2, '0')).join(''))
      }),
    )
  })

  test('write numbers as a DataView does, and read them back', () => {
    fc.assert(
      fc.property(numbers, fc.nat(3), (value, padding) => {
        const view = new DataView(new ArrayBuffer(4))
        view.setUint32(0, value)
        const big = octetsFromBytes(new Uint8Array(view.buffer))
        view.setUint32(0, value, true)
        const little = octetsFromBytes(new Uint8Array(view.buffer))
        expect(u32be(value)).toBe(big)
        expect(u32host(value)).toBe(little)
        expect(readU32be(zeros(padding) + big, padding)).toBe(value)
        expect(readU32host(zeros(padding) + little, padding)).toBe(value)
        expect(readU16be(u16be(value & 0xffff))).toBe(value & 0xffff)
      }),
    )
  })

  test('are zeros of a length', () => {
    expect(zeros(3)).toBe('\0\0\0')
    expect(zeros(0)).toBe('')
  })
})
