import { expect, it } from 'vitest'
import { runWithin, within } from '../../../src/base/clock.ts'
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

it('runs nothing beyond its time, another signal, or its own end', async () => {
  const clock = new FakeClock()
  const run = (signal: AbortSignal) => runWithin(clock, { limitMs: 100, signal }, async own => own)
  const ended = await run(new AbortController().signal)
  expect([ended.aborted, clock.pending]).toEqual([true, 0])
  const aborted: boolean[] = []
  const look = async (own: AbortSignal) => void aborted.push(own.aborted)
  await runWithin(clock, { limitMs: 100, signal: AbortSignal.abort() }, look)
  await runWithin(clock, { limitMs: 100, signal: new AbortController().signal }, async own => {
    await look(own)
    await clock.advance(100)
    await look(own)
  })
  expect(aborted).toEqual([true, false, true])
})
