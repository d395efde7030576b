import * as fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { Rest } from '../../../../../src/base/octets.ts'

describe('what is left of pieces', () => {
  it('stands before the next piece, however much of it is done with', () => {
    const step = fc.record({
      length: fc.integer({ min: 0, max: 300 }),
      done: fc.double({ min: 0, max: 1, noNaN: true }),
    })
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60 }), steps => {
        const rest = new Rest()
        let expected: number[] = []
        let next = 0
        for (const { length, done } of steps) {
          const piece = Uint8Array.from({ length }, () => next++ & 0xff)
          expected.push(...piece)
          const bytes = rest.with(piece)
          expect([...bytes]).toEqual(expected)
          const count = Math.floor(done * bytes.length)
          rest.leave(bytes, count)
          piece.fill(0)
          expected = expected.slice(count)
          expect(rest.length).toBe(expected.length)
        }
      }),
    )
  })

  it('of a single piece is seen where it lies', () => {
    const rest = new Rest()
    const piece = new Uint8Array([1, 2, 3])
    expect(rest.with(piece).buffer).toBe(piece.buffer)
  })
})
