import { describe, expect, it } from 'vitest'
import { type Owner, Shares } from '../../../src/base/shares.ts'
import { IS_QUICK } from '../../support/runs.ts'

/** Items are named after their owner: `a1`, `a2`, `b1`. */
const of = (item: string, limits: Omit<Owner, 'name'> = {}): readonly Owner[] => [
  { name: item.charAt(0), ...limits },
]

function filled(limit: number, items: readonly string[], limits: Omit<Owner, 'name'> = {}): Shares<string> {
  const shares = new Shares<string>(limit)
  for (const item of items) expect(shares.admit(item, of(item, limits)).kind).toBe('accepted')
  return shares
}

describe('Shares', () => {
  it('F132: the owner that holds most loses its longest idle item', () => {
    const shares = filled(4, ['b1', 'a1', 'a2', 'a3'])
    expect(shares.admit('c1', of('c1'))).toEqual({
      kind: 'evicted',
      owner: 'all',
      victim: 'a1',
      victimOf: ['a'],
    })
    expect(shares.held).toBe(4)
    shares.mark('a2', 'idle')
    expect(shares.admit('c2', of('c2'))).toMatchObject({ victim: 'a3' })
  })

  it('F132: the longest idle item of all goes where every owner holds as much', () => {
    const shares = filled(3, ['a1', 'b1', 'c1'])
    shares.mark('a1', 'idle')
    expect(shares.admit('d1', of('d1'))).toMatchObject({ victim: 'b1' })
  })

  it('F132: an owner at its own limit pays for its own items', () => {
    const shares = filled(10, ['b1', 'a1', 'a2'], { limit: 2 })
    expect(shares.admit('a3', of('a3', { limit: 2 }))).toMatchObject({ owner: 'a', victim: 'a1' })
    expect(shares.admit('b2', of('b2', { limit: 2 }))).toEqual({ kind: 'accepted' })
  })

  it('F132: what is reserved for an owner goes only for its own items', () => {
    const shares = new Shares<string>(4)
    const admit = (item: string) => shares.admit(item, of(item, { reserved: item.startsWith('n') ? 2 : 0 }))
    for (const item of ['n1', 'n2', 'a1', 'b1']) admit(item)
    expect(admit('c1')).toMatchObject({ victim: 'a1' })
    expect(admit('d1')).toMatchObject({ victim: 'b1' })
    expect(admit('n3')).toMatchObject({ victim: 'n1' })
    shares.leave('c1')
    admit('n4')
    // Beyond its reserve it is an owner like any other.
    expect(admit('e1')).toMatchObject({ victim: 'n2' })
  })

  it('F132: a busy item goes only for one of an owner that holds two fewer', () => {
    const shares = filled(3, ['a1', 'a2', 'b1'])
    for (const item of ['a1', 'a2', 'b1']) shares.mark(item, 'busy')
    expect(shares.admit('a3', of('a3'))).toEqual({ kind: 'refused', owner: 'all' })
    expect(shares.admit('b2', of('b2'))).toEqual({ kind: 'refused', owner: 'all' })
    expect(shares.admit('c1', of('c1'))).toMatchObject({ victim: 'a1' })
    shares.mark('c1', 'busy')
    expect(shares.admit('d1', of('d1'))).toEqual({ kind: 'refused', owner: 'all' })
    shares.mark('c1', 'idle')
    expect(shares.admit('d1', of('d1'))).toMatchObject({ victim: 'c1' })
  })

  it('F132: looks into the largest owner for the largest of its parts', () => {
    const shares = new Shares<string>(5)
    const admit = (prefix: string, address: string, item: string) =>
      shares.admit(item, [{ name: prefix }, { name: address }])
    admit('p', '1', 'p1a')
    admit('p', '2', 'p2a')
    admit('p', '2', 'p2b')
    admit('q', '1', 'q1a')
    admit('q', '1', 'q1b')
    expect(admit('r', '1', 'r1a')).toMatchObject({ victim: 'p2a', victimOf: ['p', '2'] })
  })

  it.skipIf(IS_QUICK)('F132: however many items of one owner come and go, the others keep theirs', () => {
    const shares = filled(64, ['b1', 'c1', 'c2'])
    for (let round = 0; round < 10_000; round++) {
      const admission = shares.admit(`a${round}`, of('a'))
      if (admission.kind === 'evicted') expect(admission.victim.startsWith('a')).toBe(true)
    }
    expect(shares.held).toBe(64)
  })
})
