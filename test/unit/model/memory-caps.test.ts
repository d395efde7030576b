import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { finish } from '../../../src/base/clock.ts'
import type { FrontendTable } from '../../../src/model/frontend.ts'
import type { ResolveOptions } from '../../../src/model/node-context.ts'
import { type Resolved, resolve } from '../../../src/model/resolve.ts'
import type { BalancePolicy, CostRates } from '../../../src/model/service.ts'
import { applyEvents, EMPTY_SNAPSHOT } from '../../../src/model/snapshot.ts'
import { runs } from '../../support/runs.ts'
import {
  endpoint,
  eventsOf,
  type Fields,
  OPTIONS,
  refusalLines,
  service,
  slice,
  snapshotOf,
} from './objects.ts'

const RATES: CostRates = { frontend: 1_000, sliceEndpoint: 0, endpoint: 100, perFrontend: false }

function within(bytes: number, rates: Partial<CostRates> = {}): ResolveOptions {
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

  it('F133: slots count where a policy or weights take more of them than there are endpoints', () => {
    const settled = (policy: BalancePolicy, slotsMax = (count: number) => 40 * count): ResolveOptions => {
      const options = within(22_000, { slotsMax })
      return { ...options, balancing: { policy } }
    }
    const lists = objects('a', { endpoints: 20 })
    expect(served(tableWithin(settled('random'), lists))).toEqual(['ns/a'])
    expect(served(tableWithin(settled('maglev'), lists))).toEqual([])
    expect(served(tableWithin(settled('local-first'), lists))).toEqual([])
    expect(
      served(
        tableWithin(
          settled('maglev', count => count),
          lists,
        ),
      ),
    ).toEqual(['ns/a'])
  })

  it('F133: the oldest are served, of equal ones those whose names come first, and one without a date is the newest', () => {
    const lists = [
      objects('old', { endpoints: 120 }),
      ...['b', 'a', 'c'].map((name, day) =>
        objects(name, { endpoints: 120, born: `2026-01-0${day + 2}T00:00:00Z` }),
      ),
      objects('undated', { endpoints: 120, born: '' }),
    ]
    for (const order of [lists, lists.toReversed()]) {
      const table = tableWithin(within(45_000), ...order)
      expect(served(table)).toEqual(['ns/a', 'ns/b', 'ns/old'])
      expect(refusalLines(table.services.get('ns/c'))).toEqual([
        expect.stringMatching(
          /needs about 0 MiB .* and older Services use the rest of the 0 MiB for all Services/,
        ),
      ])
    }
    expect(served(tableWithin(within(40_000), ...lists))).toEqual(['ns/b', 'ns/old'])
  })

  it('F133: a small new Service is served beside a large one that does not fit', () => {
    const large = ['a', 'b', 'c'].map(name => objects(name, { endpoints: 170 }))
    const small = objects('small', { born: '2026-02-01T00:00:00Z' })
    expect(served(tableWithin(within(50_000), ...large, small))).toEqual(['ns/a', 'ns/b', 'ns/small'])
  })

  it('F133: over the cap, too, a change of endpoints concerns no other Service', () => {
    const many = Array.from({ length: 50 }, (_, i) => objects(`g${i}`, { endpoints: 50 }))
    const options = within(200_000)
    const snapshot = snapshotOf([...many, objects('a', { endpoints: 20 })].flat())
    const before = finish(resolve(options, undefined, snapshot))
    expect(before.memo.caps.refused.size).toBeGreaterThan(10)
    const next = applyEvents(snapshot, eventsOf(objects('a', { endpoints: 19 })))
    const after = finish(resolve(options, before, next))
    expect(after.memo.caps.refused).toBe(before.memo.caps.refused)
    expect(after.memo.caps.byAge).toBe(before.memo.caps.byAge)
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

  it('F133: what is served never costs more than there is, and follows from the objects alone', () => {
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
            now = finish(resolve(options, now, snapshot))
            const { table, memo } = now
            const cost = served(table).reduce((sum, key) => sum + (memo.caps.costs.get(key) ?? 0), 0)
            expect(cost).toBeLessThanOrEqual(bytes)
            expect(served(finish(resolve(options, undefined, snapshot)).table)).toEqual(served(table))
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
    expect(after.memo.caps.services).toBe(next.services)
    expect(after.table.services.get('ns/s8')).toBe(before.table.services.get('ns/s8'))
  })
})
