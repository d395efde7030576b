import { describe, expect, it } from 'vitest'
import { isDnsLabel, isDnsSubdomain } from '../../../src/model/fields.ts'
import { ValuePool } from '../../../src/model/snapshot.ts'

describe('names', () => {
  it.each(['a', '0', 'web', 'web-1', '1-a', 'x'.repeat(63)])('%s is a DNS label', text => {
    expect(isDnsLabel(text)).toBe(true)
    expect(isDnsSubdomain(text)).toBe(true)
  })

  it.each(['', '-a', 'a-', 'A', 'a_b', 'a b', 'a\n', 'ä', 'a"', '\u202e', 'x'.repeat(64)])(
    '%j is no DNS label',
    text => {
      expect(isDnsLabel(text)).toBe(false)
    },
  )

  it('a subdomain is labels with dots between', () => {
    expect(isDnsSubdomain('node-1.example.com')).toBe(true)
    expect(isDnsLabel('node-1.example.com')).toBe(false)
    for (const text of ['.', 'a.', '.a', 'a..b', 'a.-b', 'a'.repeat(254), 'A.b'])
      expect(isDnsSubdomain(text)).toBe(false)
    expect(isDnsSubdomain(Array(126).fill('a').join('.'))).toBe(true)
    expect(isDnsSubdomain(Array(128).fill('a').join('.'))).toBe(false)
  })

  it('a pool gives equal text back and forgets all when it is full', () => {
    const pool = new ValuePool()
    const names = Array.from({ length: 65_537 }, (_, index) => `node-${index}`)
    expect(names.filter(name => pool.name(name) !== name)).toEqual([])
    expect(pool.size).toBe(1)
  })
})
