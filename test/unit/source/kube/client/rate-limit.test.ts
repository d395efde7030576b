import { describe, expect, it } from 'vitest'
import { RateLimit } from '../../../../../src/source/kube/client/rate-limit.ts'
import { FakeClock, settle } from '../../../../support/fake-clock.ts'

function limit(qps: number, burst: number) {
  const clock = new FakeClock()
  const bucket = new RateLimit({ qps, burst, clock })
  const gone: number[] = []
  const { signal } = new AbortController()
  const ask = (...numbers: number[]): void => {
    for (const number of numbers) void bucket.turn(signal).then(() => gone.push(number))
  }
  return { clock, gone, ask }
}

describe('A30: the rate limit', () => {
  it('lets a burst go at once and the rest at the rate, in order', async () => {
    const { clock, gone, ask } = limit(5, 3)
    ask(1, 2, 3, 4, 5)
    await settle()
    expect(gone).toEqual([1, 2, 3])
    await clock.advance(199)
    expect(gone.length).toBe(3)
    await clock.advance(1)
    expect(gone.at(-1)).toBe(4)
    ask(6)
    await clock.advance(400)
    expect(gone).toEqual([1, 2, 3, 4, 5, 6])
    expect(clock.pending).toBe(0)
  })

  it('fills up again while it is quiet, to the burst and no further', async () => {
    const { clock, gone, ask } = limit(5, 2)
    ask(1, 2)
    await clock.advance(3_600_000)
    ask(3, 4, 5)
    await settle()
    expect(gone).toEqual([1, 2, 3, 4])
  })

  it('limits nothing when there is no rate', async () => {
    const { gone, ask } = limit(0, 0)
    ask(1, 2, 3)
    await settle()
    expect(gone.length).toBe(3)
  })
})
