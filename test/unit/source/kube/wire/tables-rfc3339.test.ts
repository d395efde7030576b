import * as fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { rfc3339 } from '../../../../../src/source/kube/wire/tables.ts'

const FIRST_S = Date.parse('0000-01-01T00:00:00Z') / 1000
const LAST_S = Date.parse('9999-12-31T23:59:59Z') / 1000

describe('a time in RFC 3339', () => {
  it('is what Date says, without the fraction', () => {
    fc.assert(
      fc.property(fc.integer({ min: FIRST_S, max: LAST_S }), seconds => {
        expect(rfc3339(seconds)).toBe(new Date(seconds * 1000).toISOString().replace('.000Z', 'Z'))
      }),
    )
  })

  it('goes from the year 0 to the year 9999', () => {
    expect(rfc3339(FIRST_S)).toBe('0000-01-01T00:00:00Z')
    expect(rfc3339(LAST_S)).toBe('9999-12-31T23:59:59Z')
    for (const seconds of [FIRST_S - 1, LAST_S + 1, 2 ** 63, -(2 ** 63), Number.NaN])
      expect(rfc3339(seconds)).toBeUndefined()
  })
})
