import { isDeepStrictEqual } from 'node:util'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { isSame } from '../../../src/base/plain-data.ts'

const data = fc.jsonValue({ maxDepth: 3 }).map(value => zerosPositive(value))

function zerosPositive(value: unknown): unknown {
  return JSON.parse(JSON.stringify(value))
}

describe('isSame', () => {
  it('agrees with node:util on plain data', () => {
    fc.assert(
      fc.property(data, data, (a, b) => {
        expect(isSame(a, b)).toBe(isDeepStrictEqual(a, b))
        expect(isSame(a, zerosPositive(a))).toBe(true)
      }),
    )
  })

  it.each([
    [[], {}],
    [{}, []],
    [{ a: undefined }, {}],
    [{ a: undefined }, { b: undefined }],
    [[undefined], []],
    [null, {}],
    [undefined, null],
    [1, '1'],
  ])('%j and %j differ', (a, b) => {
    expect(isSame(a, b)).toBe(false)
    expect(isSame(b, a)).toBe(false)
  })
})
