import { describe, expect, it } from 'vitest'
import { parseDuration } from '../../../src/base/duration.ts'

describe('parseDuration', () => {
  it.each([
    ['30s', 30_000],
    ['1m30s', 90_000],
    ['20ms', 20],
    ['1.5h', 5_400_000],
    ['.5s', 500],
    ['500us', 0.5],
    ['0', 0],
    ['-2s', -2_000],
  ])('reads %s as Go does', (text, ms) => {
    expect(parseDuration(text)).toBeCloseTo(ms, 9)
  })

  it.each(['', '30', '5 s', 's', '1d', '1s-', '--1s', '1e3s'])('refuses %j', text => {
    expect(parseDuration(text)).toBeUndefined()
  })
})
