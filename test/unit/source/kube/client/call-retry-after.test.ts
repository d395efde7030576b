import { describe, expect, it } from 'vitest'
import { parseRetryAfter } from '../../../../../src/source/kube/client/answer.ts'

const NOW = Date.UTC(2026, 10, 21, 12, 0, 0)

describe('Retry-After', () => {
  it.each([
    ['7', 7000],
    [' 0 ', 0],
    ['99999999999999999999', 300_000],
    ['Sat, 21 Nov 2026 12:00:30 GMT', 30_000],
    ['Saturday, 21-Nov-26 12:00:30 GMT', 30_000],
    ['Sat Nov 21 12:00:30 2026 GMT', 30_000],
    ['Sat, 21 Nov 2026 11:00:00 GMT', 0],
    ['Sun, 22 Nov 2026 12:00:00 GMT', 300_000],
    ['-5', undefined],
    ['1.5', undefined],
    ['soon', undefined],
    ['Sat, 99 Foo', undefined],
    ['', undefined],
    [undefined, undefined],
  ])('A13: %j means %j milliseconds', (header, ms) => {
    expect(parseRetryAfter(header, NOW)).toBe(ms)
  })
})
