import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { finish } from '../../../src/base/clock.ts'
import { namespaceOf } from '../../../src/model/memory-shares.ts'
import {
  type CountedObject,
  fitting,
  NOTHING_HELD,
  type ObjectBudget,
  partsOf,
  withinBudget,
} from '../../../src/model/object-budget.ts'
import { resolve } from '../../../src/model/resolve.ts'
import { applyEvents, EMPTY_SNAPSHOT, type Snapshot, type SourceEvent } from '../../../src/model/snapshot.ts'
import { ip } from '../../support/addresses.ts'
import { runs } from '../../support/runs.ts'
import { endpoint, eventsOf, type Fields, OPTIONS, refusalLines, service, slice } from './objects.ts'

/** What is held after each set of events. */
class Holder {
  snapshot = EMPTY_SNAPSHOT
  budget: ObjectBudget = NOTHING_HELD
  readonly partsMax: number

  constructor(partsMax: number) {
    this.partsMax = partsMax
  }

  take(...events: readonly SourceEvent[]): this {
    const [before, after] = [this.snapshot, applyEvents(this.snapshot, events)]
    Object.assign(this, finish(withinBudget({ ...this, before, after })))
    return this
  }

  put(...objects: readonly Fields[]): this {
    return this.take(...eventsOf(objects))
  }

  get leftOut(): readonly string[] {
    return this.budget.leftOut.keys().toSorted()
  }

  get fitting(): readonly string[] {
    return fitting(this).map(({ kind, key }) => `${kind}/${key}`)
  }
}

function ports(count: number): readonly Fields[] {
  return Array.from({ length: count }, (_, i) => ({ name: `p${i}`, port: 80 + i }))
}

/** Holds four parts more than it has ports. */
function wide(key: string, count: number): Fields {
  const [namespace, name = ''] = key.split('/')
  return service(name, { ports: ports(count) }, { metadata: { namespace } })
}

/** Holds five parts more than it has endpoints. */
function full(key: string, count: number, of = 'web'): Fields {
  const [namespace, name = ''] = key.split('/')
  const labels = { 'kubernetes.io/service-name': of }
  const endpoints = Array.from({ length: count }, (_, i) => endpoint(`10.0.${i >> 8}.${i & 255}`))
  return slice(name, of, endpoints, { metadata: { namespace, labels } })
}

function gone(object: Fields): SourceEvent {
  const [event] = eventsOf([object])
  if (event === undefined || !('key' in event)) throw new Error('no object')
  return { ...event, value: undefined }
}

function objectsIn({ services, sliceByKey }: Snapshot): readonly CountedObject[] {
  return [...services.values(), ...sliceByKey.values()]
}

function heldIn(snapshot: Snapshot): number {
  return objectsIn(snapshot).reduce((sum, object) => sum + partsOf(object), 0)
}

/** By namespace: parts, with those that are left out. */
function askedIn(snapshot: Snapshot): ReadonlyMap<string, number> {
  const asked = new Map<string, number>()
  for (const object of objectsIn(snapshot)) {
    const namespace = namespaceOf(object.key)
    asked.set(namespace, (asked.get(namespace) ?? 0) + (object.leftOut ?? partsOf(object)))
  }
  return asked
}

describe('the parts of objects that are held', () => {
  it('F150: leaves out the largest object of the namespace that holds most, whatever came first', () => {
    const objects = [wide('a/large', 600), full('a/small', 50), wide('b/web', 200), full('b/web-1', 150)]
    for (const order of [objects, objects.toReversed()]) {
      const holder = new Holder(800)
      for (const object of order) holder.put(object)
      expect(holder.leftOut).toEqual(['Service/a/large'])
      expect(holder.budget.held).toBe(heldIn(holder.snapshot))
    }
  })

  it('F150: keeps the ClusterIP of a Service that is left out, and refuses its ports with its figures', () => {
    const { snapshot } = new Holder(500).put(wide('ns/web', 600), full('ns/web-1', 20))
    const web = snapshot.services.get('ns/web')
    expect(web).toMatchObject({ clusterIps: [ip('10.96.0.1')], ports: [], leftOut: 604 })
    const found = finish(resolve(OPTIONS, undefined, snapshot)).table.services.get('ns/web')
    expect(refusalLines(found)).toEqual([
      expect.stringMatching(
        /^Service ns\/web: spec\.ports = 600: holds 604 parts \(600 ports, 1 addresses\), .* divide 500 parts/,
      ),
    ])
    expect(found?.ports).toEqual([])
  })

  it('F150: serves a Service with the endpoints that are held, and names the slice that is left out', () => {
    const { snapshot } = new Holder(500).put(service('web'), full('ns/web-1', 600), full('ns/web-2', 20))
    const found = finish(resolve(OPTIONS, undefined, snapshot)).table.services.get('ns/web')
    expect(refusalLines(found)).toEqual([
      expect.stringMatching(/^EndpointSlice ns\/web-1: endpoints = 600: holds 605 parts/),
    ])
    expect(snapshot.slices.get('ns/web')?.map(({ endpoints }) => endpoints.length)).toEqual([0, 20])
  })

  it('F150: counts slices without a Service for their namespace', () => {
    const holder = new Holder(800).put(
      wide('b/web', 100),
      full('a/1', 300),
      full('a/2', 300),
      full('a/3', 310),
    )
    expect(holder.leftOut).toEqual(['EndpointSlice/a/3'])
  })

  it('F150: counts long texts and refused fields, which are held as well', () => {
    const uid = 'x'.repeat(1_000)
    const [long] = eventsOf([slice('a', 'web', [endpoint('10.0.0.1', { targetRef: { uid } })])])
    const [wrong] = eventsOf([
      slice(
        'a',
        'web',
        Array.from({ length: 50 }, () => endpoint('nowhere')),
      ),
    ])
    const parts = [long, wrong].map(event =>
      event?.kind === 'EndpointSlice' && event.value !== undefined ? partsOf(event.value) : 0,
    )
    expect(parts).toEqual([14, 105])
  })

  it('F150: has room again once others are gone, but not at the edge', () => {
    const holder = new Holder(1_000).put(wide('a/large', 600), wide('a/web', 300), full('a/1', 190))
    expect(holder.leftOut).toEqual(['Service/a/large'])
    expect(holder.fitting).toEqual([])
    holder.take(gone(full('a/1', 190))).put(full('a/1', 60))
    expect(holder.fitting).toEqual([])
    holder.put(full('a/1', 20))
    expect(holder.fitting).toEqual(['Service/a/large'])
    holder.put(wide('a/large', 600))
    expect([holder.leftOut, holder.fitting]).toEqual([[], []])
  })

  it('F150: objects that are small already stay, and are looked at once', () => {
    const holder = new Holder(100)
    for (let number = 0; number < 30; number++) holder.put(wide(`a/s${number}`, 1))
    expect([holder.leftOut, holder.budget.held]).toEqual([[], 150])
    expect(holder.budget.tolerated).toBeGreaterThan(100)
  })

  it('F150: never holds more than it may, leaves out nothing of a namespace below an equal share, and has it back', () => {
    const object = fc.record({
      kind: fc.constantFrom('Service', 'EndpointSlice'),
      namespace: fc.constantFrom('a', 'b', 'c'),
      name: fc.constantFrom('x', 'y'),
      count: fc.oneof(fc.integer({ min: 0, max: 20 }), fc.integer({ min: 50, max: 250 })),
      isGone: fc.constantFrom(true, false, false, false),
    })
    // Of three namespaces; the level is rounded down by less than two parts.
    const equal = (0.95 * 600) / 3 - 2
    fc.assert(
      fc.property(fc.array(fc.array(object, { maxLength: 4 }), { maxLength: 12, size: 'max' }), batches => {
        const holder = new Holder(600)
        const whole = new Map<string, readonly Fields[]>()
        for (const batch of batches) {
          const events = batch.flatMap(({ kind, namespace, name, count, isGone }) => {
            const key = `${namespace}/${name}`
            const fields = kind === 'Service' ? wide(key, count) : full(key, count)
            whole.set(`${kind}/${key}`, [fields])
            return isGone ? [gone(fields)] : eventsOf([fields])
          })
          const before = holder.snapshot
          holder.take(...events)
          const { snapshot, budget, leftOut } = holder
          expect(budget.held).toBe(heldIn(snapshot))
          expect(budget.held).toBeLessThanOrEqual(600)
          const stubs = objectsIn(snapshot).filter(its => its.leftOut !== undefined)
          expect(stubs).toHaveLength(leftOut.length)
          const asked = askedIn(snapshot)
          // Now; what was left out earlier stays so until it is read again.
          const known = new Set(objectsIn(before))
          for (const { key } of stubs.filter(its => !known.has(its)))
            expect(asked.get(namespaceOf(key))).toBeGreaterThan(equal)
          const below = budget.leftOut
            .values()
            .filter(({ key }) => (asked.get(namespaceOf(key)) ?? 0) <= equal)
          const { fitting: fits } = holder
          expect(fits).toEqual(expect.arrayContaining(below.map(({ kind, key }) => `${kind}/${key}`)))
          const reread = new Holder(600)
          Object.assign(reread, { snapshot, budget })
          reread.put(...fits.flatMap(its => whole.get(its) ?? []))
          expect(reread.leftOut.filter(its => fits.includes(its))).toEqual([])
          expect(reread.budget.held).toBeLessThanOrEqual(600)
        }
      }),
      { numRuns: runs(300) },
    )
  })
})
