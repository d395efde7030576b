import { describe, expect, it } from 'vitest'
import { advanced, compareVersions, isOlder, isPosition } from '../../../../src/source/kube/object-index.ts'

describe('resource versions', () => {
  it('A22: are ordered by length, then as text, beyond what numbers hold', () => {
    const ordered = [
      '1',
      '9',
      '10',
      '9007199254740992',
      '9007199254740993',
      '18446744073709551615',
      '18446744073709551616',
      '340282366920938463463374607431768211455',
      '340282366920938463463374607431768211456',
    ]
    for (const [index, version] of ordered.entries())
      for (const [other, next] of ordered.entries())
        expect(Math.sign(compareVersions(version, next) ?? Number.NaN)).toBe(Math.sign(index - other))
  })

  it('A22: have no order when one is zero, empty, padded, or not of digits', () => {
    for (const odd of ['0', '', '01', '1a', '-1', '+1', '1.5', ' 1', '1\n', '0x1', '１'])
      for (const [a, b] of [
        [odd, '5'],
        ['5', odd],
        [odd, odd],
      ] as const) {
        expect(compareVersions(a, b)).toBeUndefined()
        expect(isOlder(a, b)).toBe(false)
      }
  })

  it('say where a watch can begin', () => {
    expect(['', '0', '1', 'opaque'].map(isPosition)).toEqual([false, false, true, true])
  })

  it('never lead a watch back', () => {
    expect(advanced('10', '9')).toBe('10')
    expect(advanced('9', '10')).toBe('10')
    expect(advanced('9', '')).toBe('9')
    expect(advanced('9', '0')).toBe('9')
    expect(advanced('', '7')).toBe('7')
    expect(advanced('opaque-a', 'opaque-b')).toBe('opaque-b')
  })
})
