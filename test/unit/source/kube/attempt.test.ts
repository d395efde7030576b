import { describe, expect, it } from 'vitest'
import { WatchBackoff } from '../../../../src/source/kube/exchange.ts'
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
  it('A11: doubles from 0.8 s to 30 s', async () => {
    const expected = [800, 1_600, 3_200, 6_400, 12_800, 25_600, 30_000, 30_000]
    expect(await delays(8, () => 0)).toEqual(expected)
  })

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

  it('A11: thousands of clients that fail together come back spread out', async () => {
    let seed = 1
    const random = () => {
      seed = (seed * 48_271) % 0x7fffffff
      return seed / 0x7fffffff
    }
    const seconds = new Map<number, number>()
    for (let client = 0; client < 5_000; client++) {
      const list = await Promise.resolve(delaysAtOnce(6, random))
      const atS = Math.floor(list.reduce((sum, each) => sum + each, 0) / 1_000)
      seconds.set(atS, (seconds.get(atS) ?? 0) + 1)
    }
    expect(Math.max(...seconds.values())).toBeLessThan(5_000 / 15)
  })

  it('A13: waits as long as the server asks when that is longer', () => {
    const backoff = new WatchBackoff({ clock: new FakeClock(), random: () => 0 })
    expect([backoff.nextMs(7_000), backoff.nextMs(100), backoff.nextMs(0)]).toEqual([7_000, 1_600, 3_200])
  })
})

function delaysAtOnce(count: number, random: () => number): number[] {
  const backoff = new WatchBackoff({ clock: new FakeClock(), random })
  return Array.from({ length: count }, () => backoff.nextMs())
}
