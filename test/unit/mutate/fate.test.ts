import { expect, test } from 'vitest'
import { isSameFate } from '../../mutate/judge.ts'

/** What becomes of a packet that goes to one of `shares.length` endpoints. */
const line = (shares: readonly number[], port = 80) =>
  shares.map((share, index) => JSON.stringify([`10.0.0.${index}`, port, share.toFixed(6)])).join(' ')
const equal = (count: number) => Array.from({ length: count }, () => 1 / count)
const moved = (count: number, by: number) =>
  equal(count).map((share, index) => (index === 0 ? share * (1 + by) : share))

test('large lists may be rounded; small ones and other places may not differ', () => {
  expect(isSameFate(line(equal(17)), line(equal(17)))).toBe(true)
  expect(isSameFate(line(moved(17, 0.02)), line(equal(17)))).toBe(true)
  expect(isSameFate(line(moved(17, 0.05)), line(equal(17)))).toBe(false)
  expect(isSameFate(line(moved(16, 0.02)), line(equal(16)))).toBe(false)
  expect(isSameFate(line(moved(17, 0.02), 81), line(equal(17)))).toBe(false)
})
