import { describe, expect, it } from 'vitest'
import { WatchBackoff } from '../../../../src/source/kube/attempt.ts'
import { FakeClock } from '../../../support/fake-clock.ts'

async function delays(count: number, random: () => number): Promise<number[]> {
  const clock = new FakeClock()
  const backoff = new WatchBackoff({ clock, random })
  const list: number[] = []
  for (let each = 0; each < count; each++) {
    const delayMs = backoff.nextMs()
    list.push(delayMs)
    await clock.advance(delayMs)
  }
  return list
}

describe('back-off', () => {
  it('A11: adds up to as much again by chance', async () => {
    const expected = [1_200, 2_400, 4_800, 9_600, 19_200, 38_400, 45_000]
    expect(await delays(7, () => 0.5)).toEqual(expected)
  })

  it('A11: begins anew after two minutes without a failure, and not before', async () => {
    for (const [healthyMs, expected] of [
      [119_000, 3_200],
      [120_000, 800],
    ] as const) {
      const clock = new FakeClock()
      const backoff = new WatchBackoff({ clock, random: () => 0 })
      backoff.nextMs()
      await clock.advance(backoff.nextMs() + healthyMs)
      expect(backoff.nextMs()).toBe(expected)
    }
  })
})
