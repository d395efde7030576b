import { expect, it } from 'vitest'
import { parseRetryAfter } from '../../../../../src/source/kube/client/answer.ts'

it.each([
  ['7', 7000],
  ['0', 0],
  ['99999999999999999999', 300_000],
  ['Sat, 21 Nov 2026 12:00:30 GMT', undefined],
  ['-5', undefined],
  ['', undefined],
  [undefined, undefined],
])('A13: Retry-After %j means %j milliseconds', (header, ms) => {
  expect(parseRetryAfter(header)).toBe(ms)
})
