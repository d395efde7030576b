import { describe, expect, it } from 'vitest'
import { backoffMs } from '../../../src/base/clock.ts'

const options = { minMs: 100, maxMs: 1_000 }

describe('backoffMs', () => {
  it('scatters over the upper half of each step', () => {
    expect(backoffMs(3, { ...options, random: () => 0 })).toBe(200)
    expect(backoffMs(3, { ...options, random: () => 0.5 })).toBe(300)
  })
})
