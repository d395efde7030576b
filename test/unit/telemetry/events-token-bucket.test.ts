import { describe, expect, it } from 'vitest'
import { TokenBucket } from '../../../src/telemetry/events.ts'

describe('TokenBucket', () => {
  it('gives what it has, then one a period, and never holds more than its size', () => {
    let now = 0
    const bucket = new TokenBucket({ size: 2, refillMs: 100, nowMs: () => now })
    const takes = (tries: number) => Array.from({ length: tries }, () => bucket.take())
    expect(takes(3)).toEqual([true, true, false])
    now = 50
    expect(takes(1)).toEqual([false])
    now = 100
    expect(takes(2)).toEqual([true, false])
    now = 1_000_000
    expect(takes(3)).toEqual([true, true, false])
  })
})
