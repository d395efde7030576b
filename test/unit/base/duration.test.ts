import { describe, expect, it } from 'vitest'
import { formatGoDuration, parseDurationMs, parseGoDuration } from '../../../src/base/duration.ts'

const S = 1_000_000_000n

describe('parseGoDuration', () => {
  it.each([
    ['0', 0n],
    ['30s', 30n * S],
    ['1m30s', 90n * S],
    ['1.5s', 1_500_000_000n],
    ['.5ms', 500_000n],
    ['-1h', -3_600n * S],
    ['1us', 1_000n],
    ['1µs', 1_000n],
    ['1ns', 1n],
    ['0.5ns', 0n],
    ['2562047h', 2_562_047n * 3_600n * S],
  ])('reads %s', (text, ns) => {
    expect(parseGoDuration(text)).toBe(ns)
  })

  it.each(['', '5', 's', '1 s', '1d', '3000000h', '1s-', 'é'])('refuses %j', text => {
    expect(parseGoDuration(text)).toBeUndefined()
  })
})

describe('parseDurationMs', () => {
  it.each([
    ['1m30s', 90_000],
    ['500us', 0.5],
    ['-2s', -2_000],
    ['1e3s', undefined],
  ])('reads %s', (text, ms) => {
    expect(parseDurationMs(text)).toBe(ms)
  })
})

describe('formatGoDuration', () => {
  it.each([
    [0n, '0s'],
    [1n, '1ns'],
    [1_500n, '1.5µs'],
    [20_000_000n, '20ms'],
    [1_500_000_000n, '1.5s'],
    [30n * S, '30s'],
    [90n * S, '1m30s'],
    [600n * S, '10m0s'],
    [86_400n * S, '24h0m0s'],
    [-(3_723n * S + 4_000n), '-1h2m3.000004s'],
  ])('prints %s as Go does', (ns, text) => {
    expect(formatGoDuration(ns)).toBe(text)
  })
})
