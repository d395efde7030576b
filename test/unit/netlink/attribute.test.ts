import { describe, expect, it } from 'vitest'
import { type AttributeWriter, ByteWriter, forEachAttribute, viewOf } from '../../../src/netlink/attribute.ts'
import { NetlinkError } from '../../../src/netlink/errors.ts'
import { written } from '../../support/scripted-transport.ts'

const write = (run: (out: AttributeWriter) => void) => Buffer.from(written(run)).toString('hex')

describe('AttributeWriter', () => {
  it('counts the header but not the padding', () => {
    expect(write(out => out.octets(3, 'abcde'))).toBe('0900030061626364' + '65000000')
  })

  it('ends strings with a NUL and refuses one inside', () => {
    expect(write(out => out.string(1, 'ab'))).toBe('0700010061620000')
    expect(() => write(out => out.string(1, 'a\0b'))).toThrow(NetlinkError)
  })

  it('marks nests and counts their children with padding', () => {
    const nested = write(out => {
      out.openNest(4)
      out.octets(1, 'a')
      out.close()
    })
    expect(nested).toBe('0c0004800500010061000000')
  })

  it('accepts an attribute of 65,535 bytes and refuses one more', () => {
    expect(() => write(out => out.octets(1, 'x'.repeat(65_531)))).not.toThrow()
    expect(() => write(out => out.octets(1, 'x'.repeat(65_532)))).toThrow(/65536 bytes is longer than 65535/)
  })

  it('refuses an attribute that makes any nest around it too long', () => {
    expect(() =>
      write(out => {
        out.openNest(1)
        out.octets(1, 'x'.repeat(40_000))
        out.openNest(2)
        out.octets(1, 'x'.repeat(30_000))
      }),
    ).toThrow(NetlinkError)
  })

  it('refuses nests that are too deep, and a close too many', () => {
    expect(() => write(out => Array.from({ length: 9 }, () => out.openNest(1)))).toThrow(/nested too deep/)
    expect(() => write(out => out.close())).toThrow(/never opened/)
  })
})

describe('forEachAttribute', () => {
  const visit = (hex: string): [number, number, number][] => {
    const bytes = Buffer.from(hex, 'hex')
    const seen: [number, number, number][] = []
    forEachAttribute(viewOf(bytes), 0, bytes.length, (type, start, end) => seen.push([type, start, end]))
    return seen
  }

  it('masks the flags off types and steps over padding', () => {
    expect(visit('05000180ff000000' + '0800024001020304')).toEqual([
      [1, 4, 5],
      [2, 12, 16],
    ])
  })

  it('accepts a last attribute without its padding', () => {
    expect(visit('05000100ff')).toEqual([[1, 4, 5]])
  })

  it.each([
    ['a length of zero', '00000100'],
    ['a length shorter than the header', '03000100'],
    ['a length beyond the end', '09000100ffffffff'],
    ['stray bytes', '040001000000'],
  ])('refuses %s', (_, hex) => {
    expect(() => visit(hex)).toThrow(NetlinkError)
  })
})

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
