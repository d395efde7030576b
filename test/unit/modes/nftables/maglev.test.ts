import { createHash } from 'node:crypto'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  hashedSlots,
  MAGLEV_SLOTS_MAX,
  maglevSlots,
  maglevTable,
  type Weighted,
} from '../../../../src/modes/nftables/maglev.ts'
import { runs } from '../../../support/runs.ts'

/** Endpoints as they are in clusters: neighboring addresses, one port. */
function endpoints(count: number, first = 0): Weighted[] {
  return Array.from({ length: count }, (_, at) => {
    const number = first + at
    const address = String.fromCharCode(10, 180 + (number >> 16), (number >> 8) & 255, number & 255)
    return { endpoint: `${address}\0\x50\0\0`, weight: 1 }
  })
}

/** The slots that packets hash to, by endpoint. */
function shares(list: readonly Weighted[], seed = 1): Map<string, number> {
  const counts = new Map<string, number>()
  for (const at of maglevTable(list, seed).slice(1)) {
    const name = list[at]?.endpoint ?? ''
    counts.set(name, (counts.get(name) ?? 0) + 1)
  }
  return counts
}

/** The part of all slots that moved although its endpoint is in both lists. */
function moved(before: readonly Weighted[], after: readonly Weighted[], seed: number): number {
  const [a, b] = [maglevTable(before, seed), maglevTable(after, seed)]
  const left = new Set(after.map(({ endpoint }) => endpoint))
  let count = 0
  for (let slot = 1; slot < a.length; slot++) {
    const [was, is] = [before[a[slot] ?? -1]?.endpoint, after[b[slot] ?? -1]?.endpoint]
    if (was !== undefined && left.has(was) && was !== is) count++
  }
  return count / (a.length - 1)
}

describe('a Maglev table', () => {
  it('is the same in every release: nodes of two releases send a client to one endpoint during an upgrade', () => {
    const weighted = endpoints(5).map((each, at) => ({ ...each, weight: 1 + (at % 3) }))
    const digests = [endpoints(3), endpoints(40), weighted].map(list =>
      createHash('sha256').update(maglevTable(list, 7).join()).digest('hex').slice(0, 16),
    )
    expect(digests).toEqual(['1b1d91f95cf91b5c', '03f340015c59b8e5', '72ff7efff99fdeac'])
  })

  it('is the same whatever the order of the endpoints', () => {
    const list = endpoints(17)
    const table = [...maglevTable(list, 7)].map(at => list[at]?.endpoint)
    const turned = list.toReversed()
    expect([...maglevTable(turned, 7)].map(at => turned[at]?.endpoint)).toEqual(table)
    expect([...maglevTable(list, 8)].map(at => list[at]?.endpoint)).not.toEqual(table)
  })

  it.each([1, 2, 3, 5, 6, 20, 21, 100, 101, 400, 1_000])('gives %i endpoints equal shares', count => {
    const counts = shares(endpoints(count))
    const empty = counts.get('') ?? 0
    counts.delete('')
    expect(counts.size).toBe(count)
    expect(new Set(counts.values()).size).toBe(1)
    expect(empty).toBeLessThanOrEqual(Math.min(count - 1, maglevSlots(endpoints(count)) / 8))
  })

  it('gives endpoints shares by weight, exactly where weights are small', () => {
    const list = endpoints(10).map((its, at) => ({ ...its, weight: at < 5 ? 3 : 1 }))
    const counts = [...shares(list)].filter(([name]) => name !== '').map(([, count]) => count)
    const least = Math.min(...counts)
    expect(counts.toSorted((a, b) => a - b)).toEqual([...Array(5).fill(least), ...Array(5).fill(3 * least)])
  })

  it.each([100, 99, 7])('gives shares within 0.5 % with a weight of %i beside one of 100', weight => {
    const list = endpoints(10).map((its, at) => ({ ...its, weight: at < 5 ? 100 : weight }))
    const counts = shares(list)
    const taken = [...counts].reduce((sum, [name, count]) => (name === '' ? sum : sum + count), 0)
    for (const { endpoint, weight: its } of list) {
      const share = its / (5 * (100 + weight))
      expect(Math.abs((counts.get(endpoint) ?? 0) / taken / share - 1)).toBeLessThanOrEqual(0.005)
    }
  })

  it('moves at most 3 % of clients beyond those of the endpoint that goes, in 10,000 tables', () => {
    const counts = fc.oneof(
      { weight: 4, arbitrary: fc.integer({ min: 3, max: 20 }) },
      fc.integer({ min: 21, max: 60 }),
    )
    const isSameStep = (count: number) => hashedSlots(count) === hashedSlots(count - 1)
    fc.assert(
      fc.property(
        counts.filter(isSameStep),
        fc.nat(),
        fc.nat(2 ** 32 - 1),
        fc.nat(60_000),
        (count, gone, seed, first) => {
          const list = endpoints(count, first)
          const after = list.toSpliced(gone % count, 1)
          expect(moved(list, after, seed)).toBeLessThanOrEqual(0.03)
        },
      ),
      { numRuns: runs(10_000, 1 / 50), seed: 41 },
    )
  })

  it('takes no more slots than its bound, and still serves every endpoint', () => {
    const list = endpoints(10_000)
    expect(maglevSlots(list)).toBe(MAGLEV_SLOTS_MAX)
    const counts = shares(list)
    counts.delete('')
    expect([counts.size, new Set(counts.values())]).toEqual([10_000, new Set([6])])
  })

  it.each([
    ['weights of 1 among thousands of 100', 5_000, 100],
    ['more endpoints than slots', MAGLEV_SLOTS_MAX + 1, 1],
  ])('serves every endpoint that has a slot with %s', (_, count, weight) => {
    const list = endpoints(count).map((its, at) => ({ ...its, weight: at % 2 === 0 ? weight : 1 }))
    const counts = shares(list)
    counts.delete('')
    expect(counts.size).toBe(Math.min(count, MAGLEV_SLOTS_MAX))
  })

  it('has an endpoint for packets that meet only empty slots', () => {
    for (const count of [1, 2, 3, 7, 100])
      expect(maglevTable(endpoints(count), 3)[0]).toBeGreaterThanOrEqual(0)
  })
})
