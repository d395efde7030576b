import { describe, expect, it } from 'vitest'
import { ApiError } from '../../../../../src/source/kube/api-client.ts'
import { Call } from '../../../../../src/source/kube/client/call.ts'
import { RateLimit } from '../../../../../src/source/kube/client/rate-limit.ts'
import { FakeClock, settle } from '../../../../support/fake-clock.ts'

function limit(qps: number, burst: number) {
  const clock = new FakeClock()
  const bucket = new RateLimit({ qps, burst, clock })
  const gone: number[] = []
  const calls: Call[] = []
  const ask = (number: number): void => {
    const call = new Call({ method: 'GET', path: `/${number}` }, 'here')
    calls.push(call)
    let failed = false
    call.onFail(() => {
      failed = true
    })
    void bucket.turn(call).then(() => {
      if (!failed) gone.push(number)
    })
  }
  return { clock, bucket, gone, calls, ask }
}

describe('the rate limit', () => {
  it('A30: lets a burst go at once and the rest at the rate, in order', async () => {
    const { clock, gone, ask } = limit(5, 10)
    for (let number = 1; number <= 14; number++) ask(number)
    await settle()
    expect(gone).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    await clock.advance(199)
    expect(gone.length).toBe(10)
    await clock.advance(1)
    expect(gone.at(-1)).toBe(11)
    await clock.advance(600)
    expect(gone.slice(10)).toEqual([11, 12, 13, 14])
    expect(clock.pending).toBe(0)
  })

  it('fills up again while it is quiet, to the burst and no further', async () => {
    const { clock, gone, ask } = limit(5, 2)
    ask(1)
    ask(2)
    await clock.advance(3_600_000)
    for (let number = 3; number <= 5; number++) ask(number)
    await settle()
    expect(gone).toEqual([1, 2, 3, 4])
  })

  it('serves waiting callers in order', async () => {
    const { clock, gone, ask } = limit(1, 1)
    ask(1)
    ask(2)
    await clock.advance(999)
    ask(3)
    await clock.advance(1)
    expect(gone).toEqual([1, 2])
    await clock.advance(1000)
    expect(gone).toEqual([1, 2, 3])
  })

  it('gives the turn of one that has given up to the next', async () => {
    const { clock, gone, calls, ask } = limit(1, 1)
    for (let number = 1; number <= 3; number++) ask(number)
    calls[1]?.fail(new ApiError('aborted', 'given up'))
    await clock.advance(1000)
    expect(gone).toEqual([1, 3])
    expect(clock.pending).toBe(0)
  })

  it('limits nothing when there is no rate', async () => {
    const { gone, ask } = limit(0, 0)
    for (let number = 1; number <= 50; number++) ask(number)
    await settle()
    expect(gone.length).toBe(50)
  })

  it('refuses a line of more than 1,000', async () => {
    const { bucket, ask } = limit(1, 1)
    for (let number = 0; number <= 1000; number++) ask(number)
    await expect(bucket.turn(new Call({ method: 'GET', path: '/' }, 'here'))).rejects.toThrow('1000 requests')
  })
})
