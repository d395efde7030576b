import { describe, expect, it } from 'vitest'
import { ApiError } from '../../../../../src/source/kube/api-client.ts'
import { Call } from '../../../../../src/source/kube/client/call.ts'
import { RateLimit } from '../../../../../src/source/kube/client/rate-limit.ts'
import { FakeClock, settle } from '../../../../support/fake-clock.ts'

function limit(qps: number, burst: number) {
  const clock = new FakeClock()
  const bucket = new RateLimit({ qps, burst, clock })
  const gone: number[] = []
  const ask = (...numbers: number[]): Call[] =>
    numbers.map(number => {
      const call = new Call({ method: 'GET', path: `/${number}` }, 'here')
      void bucket.turn(call).then(() => {
        if (!call.isOver) gone.push(number)
      })
      return call
    })
  return { clock, bucket, gone, ask }
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

  it('gives the turn of one that has given up to the next', async () => {
    const { clock, gone, ask } = limit(1, 1)
    const calls = ask(1, 2, 3)
    calls[1]?.fail(new ApiError('aborted', 'given up'))
    await clock.advance(1_000)
    expect(gone).toEqual([1, 3])
    expect(clock.pending).toBe(0)
  })

  it('refuses a line of more than 2,000', async () => {
    const { bucket, ask } = limit(1, 1)
    ask(...Array.from({ length: 2_001 }, (_, number) => number))
    const call = new Call({ method: 'GET', path: '/' }, 'here')
    await expect(bucket.turn(call)).rejects.toThrow('2000 requests')
  })

  it('limits nothing when there is no rate', async () => {
    const { gone, ask } = limit(0, 0)
    ask(1, 2, 3)
    await settle()
    expect(gone.length).toBe(3)
  })
})
