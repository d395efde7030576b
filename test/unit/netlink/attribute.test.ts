import { describe, expect, it } from 'vitest'
import { AttributeWriter, ByteWriter, forEachAttribute, viewOf } from '../../../src/netlink/attribute.ts'
import { NetlinkError } from '../../../src/netlink/errors.ts'

function write(run: (out: AttributeWriter) => void): string {
  const out = new ByteWriter(4)
  run(new AttributeWriter(out))
  return Buffer.from(out.written()).toString('hex')
}

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
