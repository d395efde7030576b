import { expect, it } from 'vitest'
import { within } from '../../../src/base/clock.ts'
import { FakeClock } from '../../support/fake-clock.ts'

it('is true for work that ends in time, and leaves no timer behind', async () => {
  const clock = new FakeClock()
  expect(await within(clock, 100, Promise.resolve())).toBe(true)
  expect(clock.pending).toBe(0)
})

it('is false for work that does not', async () => {
  const clock = new FakeClock()
  const result = within(clock, 100, new Promise(() => undefined))
  await clock.advance(100)
  expect(await result).toBe(false)
})

it('passes on what the work throws', async () => {
  await expect(within(new FakeClock(), 100, Promise.reject(new Error('no')))).rejects.toThrow('no')
})
