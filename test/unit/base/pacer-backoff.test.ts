import { describe, expect, it } from 'vitest'
import { backoffMs } from '../../../src/base/clock.ts'

const options = { minMs: 100, maxMs: 1_000 }

describe('backoffMs', () => {
  it('doubles up to its limit', () => {
    const delays = [1, 2, 3, 4, 5, 1_000].map(failures =>
      backoffMs(failures, { ...options, random: () => 1 }),
    )
    expect(delays).toEqual([100, 200, 400, 800, 1_000, 1_000])
  })

  it('scatters over the upper half of each step', () => {
    expect(backoffMs(3, { ...options, random: () => 0 })).toBe(200)
    expect(backoffMs(3, { ...options, random: () => 0.5 })).toBe(300)
  })
})
