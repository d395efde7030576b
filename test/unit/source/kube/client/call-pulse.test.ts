import { describe, expect, it } from 'vitest'
import { Pulse, parseRetryAfter } from '../../../../../src/source/kube/client/answer.ts'
import { FakeClock } from '../../../../support/fake-clock.ts'

function pulse(answers: boolean) {
  const clock = new FakeClock()
  const seen = { pings: 0, deaths: 0, answered: (): void => undefined }
  const made = new Pulse({
    clock,
    ping: answered => {
      seen.pings++
      seen.answered = answered
      if (answers) answered()
    },
    dead: () => {
      seen.deaths++
    },
  })
  return { clock, seen, made }
}

describe('A15: dead-peer detection', () => {
  it('asks after 30 s without a read and gives up after 15 s without an answer', async () => {
    const { clock, seen } = pulse(false)
    await clock.advance(29_999)
    expect(seen.pings).toBe(0)
    await clock.advance(1)
    expect(seen.pings).toBe(1)
    await clock.advance(14_999)
    expect(seen.deaths).toBe(0)
    await clock.advance(1)
    expect(seen.deaths).toBe(1)
    expect(clock.pending).toBe(0)
  })

  it('asks again and again for as long as there are answers', async () => {
    const { clock, seen } = pulse(true)
    await clock.advance(300_000)
    expect(seen).toMatchObject({ pings: 10, deaths: 0 })
  })

  it('asks nothing while bytes arrive', async () => {
    const { clock, seen, made } = pulse(false)
    for (let second = 0; second < 120; second++) {
      await clock.advance(1000)
      made.heard()
    }
    expect(seen.pings).toBe(0)
    await clock.advance(30_000)
    expect(seen.pings).toBe(1)
  })

  it('takes bytes for an answer, and a late answer for nothing', async () => {
    const { clock, seen, made } = pulse(false)
    await clock.advance(31_000)
    made.heard()
    await clock.advance(14_000)
    expect(seen.deaths).toBe(0)
    await clock.advance(45_000)
    expect(seen.deaths).toBe(1)
    seen.answered()
    expect(clock.pending).toBe(0)
  })

  it('pings at once on request, once', async () => {
    const { clock, seen, made } = pulse(false)
    made.probe()
    made.probe()
    expect(seen.pings).toBe(1)
    await clock.advance(15_000)
    expect(seen.deaths).toBe(1)
  })

  it('says nothing more once it is stopped', async () => {
    const { clock, seen, made } = pulse(false)
    await clock.advance(30_000)
    made.stop()
    await clock.advance(60_000)
    expect(seen.deaths).toBe(0)
    expect(clock.pending).toBe(0)
  })
})

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
