import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { printable } from '../../../src/model/fields.ts'

describe('printable', () => {
  it.each([
    ['10.0.0.1', '10.0.0.1'],
    ['a"b\'c\\d`e', 'a\\u0022b\\u0027c\\u005cd\\u0060e'],
    ['line\nfeed\0\x7f', 'line\\u000afeed\\u0000\\u007f'],
    ['\u202egnp.exe', '\\u202egnp.exe'],
    ['zürich', 'z\\u00fcrich'],
    ['\ud800', '\\ud800'],
    [80, '80'],
    [true, 'true'],
    [null, 'null'],
    [undefined, 'nothing'],
    [{ secret: 'x' }, '{...}'],
    [['secret'], '[...]'],
    [[], '[]'],
  ])('shows %j as %s', (value, text) => {
    expect(printable(value)).toBe(text)
  })

  it('keeps 64 characters and shortens more', () => {
    expect(printable('x'.repeat(64))).toBe('x'.repeat(64))
    expect(printable('x'.repeat(65))).toBe(`${'x'.repeat(61)}...`)
    expect(printable('\0'.repeat(65_536))).toHaveLength(64)
  })

  it('is one line of printable ASCII, at most 64 characters, for any text', () => {
    fc.assert(
      // The unit 'binary' of fast-check counts up all code points first, for a second.
      fc.property(fc.array(fc.integer({ min: 0, max: 0x10_ffff }), { maxLength: 100 }), codePoints => {
        const text = String.fromCodePoint(...codePoints)
        expect(printable(text)).toMatch(/^[ -~]{0,64}$/)
        expect(printable(text)).not.toMatch(/["'`]/)
      }),
    )
  })
})
