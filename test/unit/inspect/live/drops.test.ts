import { expect, it } from 'vitest'
import { refusedBetween } from '../../../../src/inspect/live/drops.ts'

it('says so when the counters went back, instead of a wrong number', () => {
  const before = new Map([['ip kube-proxy refuse 4', 9n]])
  expect(refusedBetween(before, new Map([['ip kube-proxy refuse 4', 12n]]))).toBe(3n)
  expect(refusedBetween(before, new Map([['ip kube-proxy refuse 4', 2n]]))).toBeUndefined()
  expect(refusedBetween(before, new Map([['ip kube-proxy refuse 7', 40n]]))).toBeUndefined()
})
