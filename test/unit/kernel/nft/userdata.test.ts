import * as fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { commentOf, commentUserdata, encodeUserdata } from '../../../../src/kernel/nft/userdata.ts'
import * as arbitrary from '../../../support/nft-arbitraries.ts'

describe('userdata', () => {
  it('is a sequence of type, length and value', () => {
    expect(
      encodeUserdata([
        { type: 0, value: 'ab' },
        { type: 7, value: '' },
      ]),
    ).toBe('\0\x02ab\x07\0')
  })

  it('is refused when it is longer than the kernel stores', () => {
    expect(encodeUserdata([{ type: 0, value: 'x'.repeat(254) }])).toHaveLength(256)
    expect(() => encodeUserdata([{ type: 0, value: 'x'.repeat(255) }])).toThrow(
      /257 bytes is longer than 256/,
    )
  })
})

describe('a comment', () => {
  it('is UTF-8 with its NUL', () => {
    expect(commentUserdata(0, 'é')).toBe('\0\x03\xc3\xa9\0')
    expect(commentUserdata(0, '')).toBeUndefined()
  })

  it('comes back as it was', () => {
    fc.assert(
      fc.property(arbitrary.comment, text => {
        expect(commentOf(0, commentUserdata(0, text))).toBe(text)
      }),
    )
  })

  it('is found behind items of other types', () => {
    expect(commentOf(7, '\0\x01x\x07\x03ab\0')).toBe('ab')
  })
})
