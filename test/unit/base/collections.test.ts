import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { joined, PersistentMap } from '../../../src/base/collections.ts'

type Entry = readonly [string, number | undefined]

const keys = fc.oneof(fc.nat(40).map(String), fc.string())
const edits: fc.Arbitrary<Entry[]> = fc.array(fc.tuple(keys, fc.option(fc.nat(3), { nil: undefined })))

function edited(model: ReadonlyMap<string, number>, entries: readonly Entry[]): Map<string, number> {
  const next = new Map(model)
  for (const [key, value] of entries) {
    if (value === undefined) next.delete(key)
    else next.set(key, value)
  }
  return next
}

function sorted<T>(items: Iterable<T>): T[] {
  return [...items].sort((a, b) => (JSON.stringify(a) < JSON.stringify(b) ? -1 : 1))
}

describe('a persistent map', () => {
  test('is equal to a Map after any edits, and leaves its older versions alone', () => {
    fc.assert(
      fc.property(fc.array(fc.tuple(edits, fc.boolean())), steps => {
        let map = PersistentMap.empty<number>()
        let model = new Map<string, number>()
        const versions: [PersistentMap<number>, Map<string, number>][] = []
        for (const [step, isOwn] of steps) {
          map = isOwn ? map.withOwn(new Map(step)) : map.with(step)
          model = edited(model, step)
          versions.push([map, model])
        }
        for (const [version, expected] of versions) {
          expect(version.size).toBe(expected.size)
          expect(sorted(version.entries())).toEqual(sorted(expected.entries()))
          expect(sorted(version.keys())).toEqual(sorted(expected.keys()))
          expect(sorted(version.values())).toEqual(sorted(expected.values()))
          for (const key of expected.keys()) expect(version.get(key)).toBe(expected.get(key))
          expect(version.has('not there')).toBe(expected.has('not there'))
        }
      }),
    )
  })

  test('gives the keys that differ between two versions, and their values', () => {
    fc.assert(
      fc.property(edits, edits, edits, (shared, left, right) => {
        const base = PersistentMap.empty<number>().with(shared)
        const [a, b] = [base.with(left), base.with(right)]
        const [from, to] = [edited(edited(new Map(), shared), left), edited(edited(new Map(), shared), right)]
        const expected = sorted(new Set([...from.keys(), ...to.keys()])).filter(
          key => from.get(key) !== to.get(key),
        )
        expect(sorted(PersistentMap.changes(a, b))).toEqual(expected)
        expect(sorted(PersistentMap.differences(a, b))).toEqual(
          expected.map(key => [key, from.get(key), to.get(key)]),
        )
      }),
    )
  })

  test('is itself when nothing changes: a value set again, an absent key removed', () => {
    const map = PersistentMap.from([['a', 1]])
    const same: Entry[] = [
      ['a', 1],
      ['b', undefined],
    ]
    expect(map.with(same)).toBe(map)
    expect(map.with([])).toBe(map)
    expect(map.withOwn(new Map(same))).toBe(map)
    expect(map.withOwn(new Map())).toBe(map)
    expect(PersistentMap.empty().withOwn(new Map([['b', undefined]])).size).toBe(0)
  })

  test('knows how far two versions are from each other, at most', () => {
    const first = PersistentMap.from([['a', 1]])
    const second = first.with([
      ['a', 2],
      ['b', 1],
    ])
    const third = second.with([['a', 3]])
    const distances = () => [first, second, third].map(version => PersistentMap.distance(version, third))
    expect(distances()).toEqual([3, 1, 0])
    // Whichever holds the Map.
    expect(first.entries()).toEqual([['a', 1]])
    expect(distances()).toEqual([3, 1, 0])
    expect(PersistentMap.distance(third, first)).toBe(3)
    PersistentMap.skip(first, second, third)
    expect(PersistentMap.distance(first, third)).toBe(2)
    // Nothing connects an empty version with what comes behind it.
    const empty = PersistentMap.empty<number>()
    expect(PersistentMap.distance(empty, empty.with([['a', 1]]))).toBe(1)
    const emptied = third.with([
      ['a', undefined],
      ['b', undefined],
    ])
    const filled = emptied.with([['c', 1]])
    expect([third, emptied].map(version => PersistentMap.distance(version, filled))).toEqual([3, 1])
  })

  test('remembers nothing of what is again as it was, however much comes and goes', () => {
    const held = PersistentMap.from([['stays', 0]])
    let between = held.with([['first', 1]])
    for (let round = 0; round < 100; round++) {
      const newest = between.with([
        [`round-${round}`, round],
        [`round-${round - 1}`, undefined],
        ['stays', round % 2],
      ])
      PersistentMap.skip(held, between, newest)
      between = newest
    }
    expect([...PersistentMap.ownKeys(held)].sort()).toEqual(['first', 'round-99', 'stays'])
    expect(sorted(PersistentMap.changes(held, between))).toEqual(sorted(['first', 'round-99', 'stays']))
    expect(held.entries()).toEqual([['stays', 0]])
    expect(between.get('round-99')).toBe(99)
  })
})

test('joined text is its parts in order', () => {
  expect(joined(['ns', '/', 'web'])).toBe('ns/web')
  expect(joined(['ns', 'web'], '/')).toBe('ns/web')
  expect(joined([])).toBe('')
})
