import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { finish } from '../../../src/base/clock.ts'
import { parserOf } from '../../../src/model/parse.ts'
import type { SourceEvent } from '../../../src/model/snapshot.ts'
import { watchedResources } from '../../../src/source/kube/api-client.ts'
import { deletion, ResourceChanges } from '../../../src/source/kube/resource-changes.ts'
import { isCounted, ObjectCap, partsOf } from '../../../src/source/object-cap.ts'
import { settle } from '../../support/fake-clock.ts'
import { ReflectorRig } from '../../support/reflector-rig.ts'
import { runs } from '../../support/runs.ts'
import { service, type Written } from '../../support/scripted-api.ts'
import { endpoint, eventsOf, slice } from '../model/objects.ts'

/** Services that fit: they get a third of all parts, and each takes five with its port. */
const MAX = 10
const PARTS = 3 * 5 * MAX
/** Time until refused objects may be read again. */
const ROOM_MS = 31_000

let rig: ReflectorRig

/** Services with these numbers, the first one the oldest. */
function of(first: number, count: number, version = 10): Written[] {
  return Array.from({ length: count }, (_, index) => {
    const number = first + index
    const creationTimestamp = new Date(1_700_000_000_000 + 1_000 * number).toISOString()
    const { metadata, ...object } = service(`s${number}`, version)
    return { ...object, metadata: { ...Object(metadata), creationTimestamp } }
  })
}

function withPorts(services: readonly Written[], count: number): Written[] {
  const ports = Array.from({ length: count }, (_, at) => ({ name: `p${at}`, port: 80 + at }))
  return services.map(each => ({ ...each, spec: { ...Object(each.spec), ports } }))
}

const names = (first: number, count: number) =>
  Array.from({ length: count }, (_, index) => `ns/s${first + index}`).sort()
const known = () => [...rig.known.keys()].sort()
const refused = () => rig.refusals.map(({ object }) => object)

describe('ObjectCap', () => {
  it('F151: holds the oldest up to the cap, whatever order they come in', () => {
    const object = fc.record({
      bornS: fc.integer({ min: 0, max: 9 }),
      parts: fc.integer({ min: 1, max: 30 }),
    })
    fc.assert(
      fc.property(fc.array(object, { maxLength: 30 }), fc.infiniteStream(fc.nat()), (objects, draws) => {
        const all = objects.map((each, index) => ({ ...each, key: `ns/${index}` }))
        const heldOf = (order: typeof all) => {
          const cap = new ObjectCap(100)
          const held = new Set<string>()
          for (const each of order) {
            if (cap.refuses(each)) continue
            cap.put(each.key, each)
            held.add(each.key)
            for (const gone of cap.overflow()) held.delete(gone)
          }
          for (const gone of cap.overflow(0)) held.delete(gone)
          return [...held].sort()
        }
        const shuffled = all
          .map(each => ({ each, at: draws.next().value }))
          .sort((a, b) => a.at - b.at)
          .map(({ each }) => each)
        const expected: string[] = []
        let left = 100
        for (const each of all.toSorted((a, b) => a.bornS - b.bornS || (a.key < b.key ? -1 : 1))) {
          left -= each.parts
          if (left < 0) break
          expected.push(each.key)
        }
        expect(heldOf(all)).toEqual(expected.sort())
        expect(heldOf(shuffled)).toEqual(expected)
      }),
      { numRuns: runs(300) },
    )
  })
})

describe('partsOf', () => {
  it('F150: counts long texts and refused fields, which are held as well', () => {
    const uid = 'x'.repeat(1_000)
    const wrong = Array.from({ length: 50 }, () => endpoint('nowhere'))
    const slices = [
      slice('a', 'web', [endpoint('10.0.0.1', { targetRef: { uid } })]),
      slice('a', 'web', wrong),
    ]
    const parts = eventsOf(slices).flatMap(event =>
      isCounted(event) && event.value !== undefined ? [partsOf(event.value)] : [],
    )
    expect(parts).toEqual([14, 105])
  })
})

describe('more objects than the cap', () => {
  it.each([true, false])(
    'F151: a list leaves out the newest, and names them; streamed: %s',
    async streaming => {
      rig = new ReflectorRig({ partsMax: PARTS, streaming })
      const objects = of(0, MAX + 2).toReversed()
      if (streaming) {
        await rig.start()
        rig.api
          .take()
          .watch()
          .added(...objects)
          .listed('100')
        await settle()
      } else await rig.watching(objects, 100)
      expect(known()).toEqual(names(0, MAX))
      expect(rig.refusals).toEqual(
        [11, 10].map(number => ({
          object: `Service ns/s${number}`,
          field: '',
          value: '',
          service: `ns/s${number}`,
          reason:
            'older Services fill the 50 parts (ports, addresses, endpoints) that this process may hold of them; ' +
            'it is ignored; delete some, or give the process a higher memory limit',
        })),
      )
    },
  )

  it('F151: an older object takes the place of the newest, and events of refused ones change nothing', async () => {
    rig = new ReflectorRig({ partsMax: PARTS })
    const watch = await rig.watching(of(5, MAX), 100)
    await settle(watch.added(...of(20, 1, 110)))
    expect(known()).toEqual(names(5, MAX))
    await settle(watch.added(...of(0, 1, 120)))
    expect(known()).toEqual([...names(5, MAX - 1), 'ns/s0'].sort())
    await settle(watch.modified(...of(14, 1, 130)).modified(...of(20, 1, 131)))
    expect(known()).toEqual([...names(5, MAX - 1), 'ns/s0'].sort())
    expect(refused().sort()).toEqual(['Service ns/s14', 'Service ns/s20'])
  })

  it('F151: the reflector lists again once there is room, and the refusal ends', async () => {
    rig = new ReflectorRig({ partsMax: PARTS })
    const watch = await rig.watching(of(0, MAX + 1), 100)
    expect(refused()).toEqual([`Service ns/s${MAX}`])
    await settle(watch.deleted(...of(0, 1, 120)))
    await rig.list(of(1, MAX), '130')
    expect(known()).toEqual(names(1, MAX))
    expect(refused()).toEqual([])
    expect(rig.reasons()).toEqual(['start', 'room for refused objects'])
  })

  it('F151: the second list for room waits', async () => {
    rig = new ReflectorRig({ partsMax: PARTS })
    let watch = await rig.watching(of(0, 30), 100)
    await settle(watch.deleted(...of(0, 1, 200)))
    await rig.list(of(1, 29), '210')
    watch = rig.api.take().watch()
    await settle(watch.deleted(...of(1, 1, 220)))
    expect(rig.api.waiting()).toBe(0)
    await rig.clock.advance(ROOM_MS)
    await settle(watch.bookmark('230'))
    expect(rig.requests.at(-1)).toMatch(/^list/)
  })

  it('F151: the refusal ends when the objects that were refused are deleted', async () => {
    rig = new ReflectorRig({ partsMax: PARTS })
    const watch = await rig.watching(of(0, MAX + 2), 100)
    await settle(watch.deleted(...of(MAX, 2, 120)))
    expect(refused()).toEqual([])
    expect(known()).toEqual(names(0, MAX))
  })

  it('F150: the oldest refused object comes back that became small enough during the list', async () => {
    rig = new ReflectorRig({ partsMax: PARTS, streaming: true })
    const [wide = service('none', 1)] = withPorts(of(MAX, 1), 6)
    await rig.start()
    const watch = rig.api
      .take()
      .watch()
      .added(...of(0, MAX - 1), wide)
      .modified(...of(MAX, 1, 90))
      .listed('100')
    await settle()
    expect(refused()).toEqual([`Service ns/s${MAX}`])
    await settle(watch.bookmark('110'))
    expect(rig.requests).toHaveLength(2)
  })
})

/** Services of a server, and what a reader with a cap of 60 parts takes of them by events and lists. */
class Followed {
  readonly server = new Map<
    string,
    { readonly object: Written; readonly parts: number; readonly at: number }
  >()
  readonly held = new Set<string>()
  #nowMs = 0
  #version = 100
  readonly #changes = new ResourceChanges({
    resource: watchedResources({ nodeName: 'n1', serviceProxyName: undefined })[0] ?? expect.fail(),
    clock: { nowMs: () => this.#nowMs },
    parseObject: parserOf(),
    deletion,
    skipped: () => undefined,
    partsMax: 3 * 60,
  })

  put(key: number, ports: number, isNew: boolean): void {
    if (isNew) this.delete(key)
    const at = this.server.get(`ns/s${key}`)?.at ?? ++this.#version
    const [object = expect.fail()] = withPorts(of(at, 1, ++this.#version), ports)
    const named = { ...object, metadata: { ...object.metadata, name: `s${key}`, uid: `u${at}` } }
    this.server.set(`ns/s${key}`, { object: named, parts: 4 + ports, at })
    this.#take(this.#changes.put(this.#changes.identify(named) ?? expect.fail()))
  }

  delete(key: number): void {
    const object = this.server.get(`ns/s${key}`)?.object
    if (object === undefined) return
    this.server.delete(`ns/s${key}`)
    const gone = { ...object, metadata: { ...object.metadata, resourceVersion: `${++this.#version}` } }
    this.#take(this.#changes.remove(this.#changes.identify(gone) ?? expect.fail()))
  }

  /** Lists once there is room; false if there is none. */
  listForRoom(waitMs: number): boolean {
    this.#nowMs += waitMs
    if (!this.#changes.takeRoom()) return false
    const listing = this.#changes.openListing()
    for (const { object } of this.server.values()) listing.take(object)
    listing.end()
    const missing = finish(this.#changes.vanishing(listing))
    const how = { resourceVersion: `${++this.#version}`, missing, backwards: false }
    this.#take(finish(this.#changes.land(listing, how)))
    return true
  }

  #take(events: readonly SourceEvent[]): void {
    for (const event of events)
      if ('key' in event && event.value !== undefined) this.held.add(event.key)
      else if ('key' in event) this.held.delete(event.key)
  }
}

it('F151: whatever happens to objects, the oldest that fit are held after two lists for room', () => {
  const kind = fc.constantFrom('put', 'put', 'recreate', 'delete', 'list')
  const step = fc.record({ kind, key: fc.nat(11), ports: fc.integer({ min: 1, max: 20 }) })
  fc.assert(
    fc.property(fc.array(step, { minLength: 30, maxLength: 80 }), steps => {
      const its = new Followed()
      for (const { kind, key, ports } of steps)
        if (kind === 'list') its.listForRoom(1_000)
        else if (kind === 'delete') its.delete(key)
        else its.put(key, ports, kind === 'recreate')
      expect([1, 2, 3].every(() => its.listForRoom(ROOM_MS))).toBe(false)
      const oldest = [...its.server].sort(([, a], [, b]) => a.at - b.at)
      const expected: string[] = []
      let left = 60
      for (const [key, { parts }] of oldest) {
        left -= parts
        if (left < 0) break
        expected.push(key)
      }
      expect([...its.held].sort()).toEqual(expected.sort())
    }),
    { numRuns: runs(300) },
  )
})
