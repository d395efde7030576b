import { describe, expect, it } from 'vitest'
import {
  advanced,
  compareVersions,
  isOlder,
  isPosition,
  ObjectIndex,
  type Version,
} from '../../../../src/source/kube/object-index.ts'

function v(resourceVersion: string | number, uid = 'u1'): Version {
  return { uid, resourceVersion: String(resourceVersion) }
}

describe('index of objects', () => {
  it('A28: never goes back', () => {
    const index = new ObjectIndex()
    index.put('a', v('18446744073709551616'))
    expect(index.put('a', v('18446744073709551615'))).toBe('older')
    expect(index.put('a', v('9', 'other'))).toBe('older')
    expect(index.remove('a', v('9'))).toBe('older')
    expect(index.get('a')).toEqual(v('18446744073709551616'))
  })

  it('A28: does not revive what was deleted later', () => {
    const index = new ObjectIndex()
    index.put('a', v(5))
    expect(index.remove('a', v(7))).toBe('removed')
    expect(index.put('a', v(6))).toBe('older')
    expect(index.put('a', v(7))).toBe('older')
    expect(index.put('a', v(8, 'u2'))).toBe('added')
    index.removeUnlisted('a', '20')
    expect(index.put('a', v(19, 'u2'))).toBe('older')
  })

  it('A22: takes versions without an order as they come', () => {
    const index = new ObjectIndex()
    index.put('a', v('x2'))
    expect(index.put('a', v('x1'))).toBe('changed')
    expect(index.put('a', v('x1'))).toBe('same')
    expect(index.remove('a', v('x0'))).toBe('removed')
  })

  it('takes everything for news once versions are forgotten', () => {
    const index = new ObjectIndex()
    index.put('a', v(10))
    index.forgetVersions()
    expect(index.put('a', v(10))).toBe('changed')
    expect(index.size).toBe(1)
  })

  it('is overwritten by what is older when that is right', () => {
    const index = new ObjectIndex()
    index.put('a', v(10))
    index.put('b', v(10))
    expect(index.put('a', v(3), true)).toBe('changed')
    expect(index.put('b', v(10), true)).toBe('same')
    expect(index.put('b', v(3, 'u2'), true)).toBe('recreated')
    expect(index.put('c', v(3), true)).toBe('added')
  })

  it('remembers the latest deletions and no more', () => {
    const index = new ObjectIndex()
    for (let each = 0; each < 5_000; each++) {
      index.put(`k${each}`, v(1))
      index.remove(`k${each}`, v(2))
    }
    expect(index.tombstone('k0')).toBeUndefined()
    expect(index.tombstone('k4999')).toEqual(v(2))
    expect(index.tombstone('k904')).toEqual(v(2))
  })
})

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
