import { describe, expect, it } from 'vitest'
import {
  finish,
  finishInSlices,
  Pauses,
  restMs,
  runWithin,
  type Steps,
  SYNC_REST_MS_MAX,
  SYNC_SHARE,
  within,
} from '../../../src/base/clock.ts'
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

it.each([
  [0, 0],
  [0.1, 4],
  [1, 40],
  [6.25, 250],
  [500, 250],
])('rests after a pass of %f ms for %f ms', (tookMs, ms) => {
  const rest = restMs(tookMs, { share: SYNC_SHARE, maxMs: SYNC_REST_MS_MAX })
  expect(rest).toBeCloseTo(ms)
  if (rest < SYNC_REST_MS_MAX) expect(tookMs).toBeLessThanOrEqual(SYNC_SHARE * (tookMs + rest))
})

it('rests for the minimum, whatever the maximum is', () => {
  expect(restMs(1, { share: 0.5, minMs: 300, maxMs: 250 })).toBe(300)
  expect(restMs(1_000, { share: 0.5, minMs: 300 })).toBe(2_000)
})

function* failing(): Steps<string> {
  yield
  throw new Error('broken')
}

describe('a computation in steps', () => {
  it('throws what it throws', async () => {
    expect(() => finish(failing())).toThrow('broken')
    const slicing = { sliceMs: 1, nowMs: () => 0, breathe: async () => undefined }
    await expect(finishInSlices(failing(), slicing)).rejects.toThrow('broken')
  })

  it('lets others have their turn whenever a slice is used up, and not before', async () => {
    let nowMs = 0
    const breaths: number[] = []
    function* steps(): Steps<string> {
      for (let step = 0; step < 10; step++) {
        nowMs += 4
        yield
      }
      return 'done'
    }
    const breathe = async () => {
      breaths.push(nowMs)
      nowMs += 100
    }
    expect(await finishInSlices(steps(), { sliceMs: 10, nowMs: () => nowMs, breathe })).toBe('done')
    // Three steps of 4 ms use up 10 ms; time spent breathing counts for no slice.
    expect(breaths).toEqual([12, 124, 236])
  })
})

describe('pauses', () => {
  it('are due after equal numbers of items', () => {
    const pauses = new Pauses()
    const due = Array.from({ length: 2_000 }, (_, item) => (pauses.due() ? item + 1 : 0)).filter(at => at > 0)
    const [first = 0] = due
    expect(due.length).toBeGreaterThan(5)
    expect(due).toEqual(due.map((_, index) => first * (index + 1)))
  })

  it('are due at once after an item that counts as many', () => {
    const pauses = new Pauses()
    expect(pauses.due(100_000)).toBe(true)
    expect(pauses.due(1)).toBe(false)
  })
})
