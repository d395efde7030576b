import { describe, expect, it } from 'vitest'
import { ByteWriter } from '../../../src/netlink/attribute.ts'

describe('ByteWriter', () => {
  it('writes each width in its order and grows as it goes', () => {
    const out = new ByteWriter(1)
    out.u8(0x01)
    out.u16(0x0203)
    out.u16be(0x0405)
    out.u32(0x06070809)
    out.u32be(0x0a0b0c0d)
    out.u64be(0x0102030405060708n)
    out.u64(0x0102030405060708n)
    out.octets('\xff\x00')
    out.utf8('é')
    const pieces = '01 0302 0405 09080706 0a0b0c0d 0102030405060708 0807060504030201 ff00 c3a9'
    expect(Buffer.from(out.written()).toString('hex')).toBe(pieces.replaceAll(' ', ''))
  })

  it('pads with zeros, over whatever lay there before', () => {
    const out = new ByteWriter(8)
    out.octets('\xff\xff\xff\xff\xff\xff\xff\xff')
    out.length = 1
    out.align()
    expect([...out.written()]).toEqual([0xff, 0, 0, 0])
  })

  it('writes negative numbers in two’s complement', () => {
    const out = new ByteWriter()
    out.u32be(-4)
    expect([...out.written()]).toEqual([255, 255, 255, 252])
  })

  it('patches lengths behind it', () => {
    const out = new ByteWriter()
    out.u32(0)
    out.u16(0)
    out.patchU32(0, 0x11223344)
    out.patchU16(4, 0x5566)
    expect(Buffer.from(out.written()).toString('hex')).toBe('443322116655')
  })
})
