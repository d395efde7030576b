import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { finish } from '../../../src/base/clock.ts'
import type { FrontendTable } from '../../../src/model/frontend.ts'
import type { ResolveOptions } from '../../../src/model/node-context.ts'
import { type Resolved, resolve } from '../../../src/model/resolve.ts'
import { applyEvents, EMPTY_SNAPSHOT } from '../../../src/model/snapshot.ts'
import { runs } from '../../support/runs.ts'
import {
  endpoint,
  eventsOf,
  type Fields,
  OPTIONS,
  refusalLines,
  refusing,
  service,
  slice,
  snapshotOf,
} from './objects.ts'

const RATES = { frontend: 1_000, sliceEndpoint: 0, endpoint: 100, perFrontend: false }

function within(bytes: number, rates: Partial<typeof RATES> = {}): ResolveOptions {
  return { ...OPTIONS, memory: { bytes, rates: { ...RATES, ...rates } } }
}

interface Shape {
  readonly namespace?: string
  readonly ports?: number
  readonly externalIps?: number
  readonly endpoints?: number
  readonly born?: string
}

/** One of its own. */
function addressOf(key: string): string {
  const number = [...key].reduce((sum, char) => (sum * 31 + char.charCodeAt(0)) % 65_521, 7)
  return `10.96.${number >> 8}.${number & 255}`
}

/** Of IPv4 alone; by default one port and no endpoint. */
function objects(name: string, shape: Shape = {}): readonly Fields[] {
  const { namespace = 'ns', ports = 1, externalIps = 0, endpoints = 0, born = '2026-01-01T00:00:00Z' } = shape
  const list = Array.from({ length: ports }, (_, i) => ({ name: `p${i}`, port: 80 + i }))
  const metadata = { namespace, creationTimestamp: born }
  const spec = {
    clusterIP: addressOf(`${namespace}/${name}`),
    ports: list,
    externalIPs: Array.from({ length: externalIps }, (_, i) => `192.0.2.${i + 1}`),
  }
  const addresses = Array.from({ length: endpoints }, (_, i) => endpoint(`10.0.${i >> 8}.${i & 255}`))
  const labels = { 'kubernetes.io/service-name': name }
  return [
    service(name, spec, { metadata }),
    slice(`${name}-1`, name, addresses, { ports: list, metadata: { namespace, labels } }),
  ]
}

function served(table: FrontendTable): readonly string[] {
  return [...table.services.entries()].flatMap(([key, { ports }]) => (ports.length > 0 ? [key] : [])).sort()
}

function tableWithin(options: ResolveOptions, ...lists: readonly (readonly Fields[])[]): FrontendTable {
  return finish(resolve(options, undefined, snapshotOf(lists.flat()))).table
}

describe('the memory for Services', () => {
  it.each([
    ['ports with endpoints', { ports: 50, endpoints: 50 }],
    ['ports at addresses', { ports: 50, externalIps: 50 }],
  ])(
    'F133: a Service with too many %s is refused with its figures, and the others are served',
    (_, shape) => {
      const table = tableWithin(within(200_000), objects('large', shape), objects('small'))
      expect(served(table)).toEqual(['ns/small'])
      const [line] = refusalLines(table.services.get('ns/large'))
      expect(line).toMatch(
        /^Service ns\/large: spec\.ports = 50: needs about \d+ MiB \(50 ports, \d+ addresses/,
      )
      expect(table.services.get('ns/large')?.clusterIps).toHaveLength(1)
    },
  )

  it('F133: endpoints count for each frontend where each frontend has its own', () => {
    const shape = { ports: 2, externalIps: 9, endpoints: 40 }
    expect(served(tableWithin(within(100_000), objects('a', shape)))).toEqual(['ns/a'])
    expect(served(tableWithin(within(100_000, { perFrontend: true }), objects('a', shape)))).toEqual([])
  })

  it('F133: an endpoint of a slice counts once beside its ports', () => {
    const shape = { ports: 2, endpoints: 10 }
    expect(served(tableWithin(within(17_000), objects('a', shape)))).toEqual(['ns/a'])
    expect(served(tableWithin(within(17_000, { sliceEndpoint: 200 }), objects('a', shape)))).toEqual([])
    expect(served(tableWithin(within(22_000, { sliceEndpoint: 200 }), objects('a', shape)))).toEqual(['ns/a'])
  })

  it('F133: the smallest come first, and of equal ones the oldest', () => {
    const lists = [
      objects('large', { endpoints: 200 }),
      ...['b', 'a', 'c'].map((name, day) =>
        objects(name, { endpoints: 100, born: `2026-01-0${day + 1}T00:00:00Z` }),
      ),
    ]
    expect(served(tableWithin(within(61_000), ...lists))).toEqual(['ns/a', 'ns/b', 'ns/c', 'ns/large'])
    expect(served(tableWithin(within(57_000), ...lists))).toEqual(['ns/a', 'ns/b', 'ns/c'])
    expect(served(tableWithin(within(32_000), ...lists))).toEqual(['ns/a', 'ns/b'])
  })

  it('F133: a namespace may have what others leave, and others keep theirs', () => {
    const greedy = Array.from({ length: 20 }, (_, i) =>
      objects(`g${i}`, { namespace: 'greedy', endpoints: 75 }),
    )
    const modest = Array.from({ length: 4 }, (_, i) =>
      objects(`m${i}`, { namespace: 'modest', endpoints: 200 }),
    )
    expect(served(tableWithin(within(210_000), ...greedy))).toHaveLength(20)
    const both = served(tableWithin(within(210_000), ...greedy, ...modest))
    expect(both.filter(key => key.startsWith('modest/'))).toHaveLength(4)
    expect(both.filter(key => key.startsWith('greedy/'))).toHaveLength(11)
  })

  it.each([2, 3, 10])('F133: %i namespaces that ask for too much leave a third one its Services', greedy => {
    const lists = Array.from({ length: greedy }, (_, which) =>
      Array.from({ length: 28 }, (_, i) =>
        objects(`g${i}`, { namespace: `greedy-${which}`, endpoints: 50, born: '2025-01-01T00:00:00Z' }),
      ),
    ).flat()
    const ingress = objects('ingress', { namespace: 'kube-system', endpoints: 60 })
    const options = within(200_000)
    const names = served(tableWithin(options, ...lists, ingress))
    expect(names).toContain('kube-system/ingress')
    const counts = Array.from({ length: greedy }, (_, which) =>
      names.filter(key => key.includes(`-${which}/`)),
    )
    expect(new Set(counts.map(({ length }) => length)).size).toBe(1)
    // An incumbent stays as well.
    const snapshot = snapshotOf(ingress)
    const before = finish(resolve(options, undefined, snapshot))
    const next = applyEvents(snapshot, eventsOf(lists.flat()))
    expect(served(finish(resolve(options, before, next)).table)).toEqual(names)
  })

  it('F133: over the limit, too, a change costs what it changes', () => {
    const greedy = Array.from({ length: 50 }, (_, i) =>
      objects(`g${i}`, { namespace: 'greedy', endpoints: 50 }),
    )
    const options = within(200_000)
    const snapshot = snapshotOf([...greedy, objects('a', { endpoints: 20 })].flat())
    const before = finish(resolve(options, undefined, snapshot))
    expect(before.memo.admission?.oversized.size).toBeGreaterThan(10)
    const next = applyEvents(snapshot, eventsOf(objects('a', { endpoints: 19 })))
    const after = finish(resolve(options, before, next))
    expect(after.memo.admission?.oversized).toBe(before.memo.admission?.oversized)
    expect(after.memo.admission?.cuts.get('greedy')).toBe(before.memo.admission?.cuts.get('greedy'))
  })

  it('F133: a Service that becomes smaller is served, and with it those that it kept out', () => {
    const options = within(43_000)
    const first = snapshotOf([...objects('a', { endpoints: 120 }), ...objects('b', { endpoints: 130 })])
    let now = finish(resolve(options, undefined, first))
    expect(served(now.table)).toEqual(['ns/a', 'ns/b'])
    const change = (list: readonly Fields[]) => {
      now = finish(resolve(options, now, applyEvents(now.snapshot, eventsOf(list))))
    }
    change(objects('c', { endpoints: 110 }))
    expect(served(now.table)).toEqual(['ns/a', 'ns/c'])
    change(objects('c', { endpoints: 1 }))
    expect(served(now.table)).toEqual(['ns/a', 'ns/b', 'ns/c'])
    expect(refusalLines(now.table.services.get('ns/b'))).toEqual([])
  })

  it('F133: a Service at the edge stays as it is while others change a little', () => {
    const options = within(43_000)
    const neighbor = (endpoints: number) => objects('c', { endpoints, namespace: 'other' })
    const first = snapshotOf([...objects('a', { endpoints: 120 }), ...objects('b', { endpoints: 130 })])
    let now = finish(resolve(options, undefined, first))
    const servedWith = (list: readonly Fields[]) => {
      now = finish(resolve(options, now, applyEvents(now.snapshot, eventsOf(list))))
      return served(now.table)
    }
    expect(servedWith(neighbor(103))).toEqual(['ns/a', 'ns/b', 'other/c'])
    expect(servedWith(neighbor(107))).toEqual(['ns/a', 'other/c'])
    for (const endpoints of [103, 107, 90])
      expect(servedWith(neighbor(endpoints))).toEqual(['ns/a', 'other/c'])
    expect(servedWith(neighbor(80))).toEqual(['ns/a', 'ns/b', 'other/c'])
    for (const endpoints of [90, 103]) expect(servedWith(neighbor(endpoints))).toHaveLength(3)
  })

  it('F133: a Service at the share of one comes back where it is clearly below it', () => {
    const options = within(50_000)
    let now = finish(resolve(options, undefined, snapshotOf([])))
    const isServed = (endpoints: number) => {
      now = finish(resolve(options, now, applyEvents(now.snapshot, eventsOf(objects('a', { endpoints })))))
      return served(now.table).length === 1
    }
    expect([174, 175, 174, 166, 164, 174].map(isServed)).toEqual([true, false, false, false, true, true])
  })

  it('F133: a Service that stays refused below the share of one is refused with the lower figure', () => {
    const options = within(300 << 20, { endpoint: 1 << 20 })
    const first = finish(resolve(options, undefined, snapshotOf(objects('a', { endpoints: 121 }))))
    const next = applyEvents(first.snapshot, eventsOf(objects('a', { endpoints: 117 })))
    const after = finish(resolve(options, first, next))
    expect([first, after].flatMap(({ table }) => refusalLines(table.services.get('ns/a')))).toEqual([
      expect.stringMatching(/needs about 121 MiB .* a Service may take 120 MiB; no port/),
      expect.stringMatching(
        /needs about 117 MiB .* a Service may take 120 MiB, and 114 MiB after it was refused; no port/,
      ),
    ])
  })

  it('F133: a Service that is created anew at the same cost comes after those that are older now', () => {
    const options = within(29_000)
    const both = (days: readonly number[]) =>
      ['a', 'b'].flatMap((name, at) =>
        objects(name, { endpoints: 80, born: `2026-01-0${days[at]}T00:00:00Z` }),
      )
    const filler = objects('c', { endpoints: 70 })
    const first = snapshotOf([...both([1, 2]), ...filler])
    const before = finish(resolve(options, undefined, first))
    expect(served(before.table)).toEqual(['ns/a', 'ns/c'])
    const next = applyEvents(first, eventsOf(both([3, 2])))
    expect(served(finish(resolve(options, before, next)).table)).toEqual(['ns/b', 'ns/c'])
  })

  it('F133: what is served never costs more than there is, and follows from the objects and what was refused', () => {
    const shape = fc.record({
      name: fc.constantFrom('a', 'b', 'c', 'd', 'e', 'f'),
      namespace: fc.constantFrom('x', 'y'),
      ports: fc.oneof(fc.constant(1), fc.integer({ min: 1, max: 4 })),
      // Often the same, so that the age decides.
      endpoints: fc.oneof(fc.constant(10), fc.integer({ min: 0, max: 30 })),
      born: fc.constantFrom('2026-01-01T00:00:00Z', '2026-01-02T00:00:00Z'),
    })
    fc.assert(
      fc.property(
        fc.array(fc.array(shape, { maxLength: 4 }), { maxLength: 10 }),
        fc.integer({ min: 5_000, max: 60_000 }),
        (steps, bytes) => {
          const options = within(bytes)
          let now: Resolved | undefined
          for (const shapes of steps) {
            const events = eventsOf(shapes.flatMap(its => objects(its.name, its)))
            const snapshot = applyEvents(now?.snapshot ?? EMPTY_SNAPSHOT, events)
            const refusedBefore = refusing(options, now)
            now = finish(resolve(options, now, snapshot))
            const { table, memo } = now
            const cost = served(table).reduce((sum, key) => sum + (memo.admission?.costs.get(key) ?? 0), 0)
            expect(cost).toBeLessThanOrEqual(bytes)
            for (const its of [refusedBefore, refusing(options, now)])
              expect(served(finish(resolve(its, undefined, snapshot)).table)).toEqual(served(table))
          }
        },
      ),
      { numRuns: runs(200) },
    )
  })

  it('costs what has changed: no Service that nothing happens to is weighed again', () => {
    const all = Array.from({ length: 1_000 }, (_, i) => objects(`s${i}`)).flat()
    const options = within(1e9)
    const snapshot = snapshotOf(all)
    const before = finish(resolve(options, undefined, snapshot))
    const next = applyEvents(snapshot, eventsOf(objects('s7', { endpoints: 3 })))
    const after = finish(resolve(options, before, next))
    expect(after.memo.admission?.services).toBe(next.services)
    expect(after.table.services.get('ns/s8')).toBe(before.table.services.get('ns/s8'))
  })
})
