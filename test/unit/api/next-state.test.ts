import fc from 'fast-check'
import { describe, expect, it, vi } from 'vitest'
import { ApiFeed } from '../../../src/api/feed.ts'
import { nextApiState } from '../../../src/api/next-state.ts'
import { ObjectMaker } from '../../../src/api/object-maker.ts'
import { type ApiObject, type ApiOperation, type ApiState, difference } from '../../../src/api/state.ts'
import { finish } from '../../../src/base/clock.ts'
import { PersistentMap } from '../../../src/base/collections.ts'
import { resolve } from '../../../src/model/resolve.ts'
import { applyEvents, EMPTY_SNAPSHOT, type SourceEvent } from '../../../src/model/snapshot.ts'
import { messageIn } from '../../support/api/states.ts'
import { IS_QUICK, runs } from '../../support/runs.ts'
import { DRAINING, endpoint, node, OPTIONS, service, slice, UNREADY } from '../model/objects.ts'
import { detailed, Viewer } from './views.ts'

// Few of everything, so that nearly everything meets.
const name = fc.constantFrom('a', 'b', 'c')
const address = fc.constantFrom('10.96.0.1', '10.96.0.2', '192.0.2.1')
const policy = fc.constantFrom('Cluster', 'Local')

const anyService = fc
  .record({
    name,
    clusterIP: address,
    externalIPs: fc.array(address, { maxLength: 2 }),
    target: fc.constantFrom(undefined, 80, 8080, 'web'),
    isOfTwoPorts: fc.boolean(),
    labels: fc.constantFrom(
      {},
      { app: 'x' },
      { app: 'y' },
      { 'service.kubernetes.io/service-proxy-name': 'z' },
    ),
    policies: fc.tuple(policy, policy),
  })
  .map(({ target, isOfTwoPorts, policies, labels, ...its }) =>
    service(
      its.name,
      {
        clusterIP: its.clusterIP,
        externalIPs: its.externalIPs,
        internalTrafficPolicy: policies[0],
        externalTrafficPolicy: policies[1],
        ports: isOfTwoPorts
          ? [
              { name: 'x', port: 80, targetPort: target },
              { name: 'y', port: 443 },
            ]
          : [{ name: 'x', port: 80, targetPort: target }],
      },
      { metadata: { labels } },
    ),
  )

const anyEndpoint = fc
  .record({
    address: fc.constantFrom('10.1.0.1', '10.1.0.2', '10.1.0.3'),
    conditions: fc.constantFrom({}, {}, DRAINING, UNREADY),
    nodeName: fc.constantFrom('here', 'there'),
    hostname: fc.constantFrom(undefined, 'x', 'y'),
  })
  .map(({ address, ...rest }) => endpoint(address, rest))

const anySlice = fc
  .record({
    name: fc.constantFrom('s1', 's2', 's3'),
    to: name,
    endpoints: fc.array(anyEndpoint, { maxLength: 4 }),
    ports: fc.subarray(
      [
        { name: 'x', port: 80 },
        { name: 'x', port: 8080 },
        { name: 'y', port: 443 },
      ],
      { minLength: 1 },
    ),
  })
  .map(({ ports, ...its }) => slice(its.name, its.to, its.endpoints, { ports }))

const gone = (kind: 'Service' | 'EndpointSlice') => (key: string) =>
  ({ kind, key: `ns/${key}`, value: undefined }) satisfies SourceEvent

const anyEvent: fc.Arbitrary<SourceEvent> = fc.oneof(
  { weight: 5, arbitrary: anyService.map(detailed) },
  { weight: 5, arbitrary: anySlice.map(detailed) },
  { weight: 2, arbitrary: name.map(gone('Service')) },
  { weight: 2, arbitrary: fc.constantFrom('s1', 's2', 's3').map(gone('EndpointSlice')) },
  {
    weight: 1,
    arbitrary: fc.constantFrom(['192.168.1.7'], ['192.0.2.1']).map(ips => detailed(node({ ips }))),
  },
)

const anyHistory = fc.array(fc.array(anyEvent, { minLength: 1, maxLength: 3 }), {
  minLength: 1,
  maxLength: 12,
})

/** Keeps what it is told of; an endpoint without its Service is an error at every moment. */
class Client {
  readonly services = new Map<string, ApiObject>()
  readonly endpoints = new Map<string, ApiObject>()

  apply(operations: Iterable<ApiOperation>): void {
    for (const operation of operations) {
      const set = operation.set === 1 ? this.services : this.endpoints
      if (operation.kind === 'set') set.set(operation.object.path, operation.object)
      else expect(set.delete(operation.path), `${operation.path} was there`).toBe(true)
      for (const path of this.endpoints.keys())
        expect(this.services.has(path.slice(0, path.lastIndexOf('/'))), path).toBe(true)
    }
  }

  get content(): unknown {
    return bytesIn(this.services.values(), this.endpoints.values())
  }
}

function bytesOf({ services, endpoints }: ApiState): unknown {
  return bytesIn(services.values(), endpoints.values())
}

/** What the objects say, wherever they lie in memory: one that says the same again is not sent again. */
function bytesIn(...sets: readonly Iterable<ApiObject>[]): unknown {
  return sets.map(set => [...set].map(object => `${object.path} ${messageIn(object).toString('hex')}`).sort())
}

describe('nextApiState', () => {
  it('says the same as a start from nothing, and keeps the objects of what did not change', () => {
    fc.assert(
      fc.property(anyHistory, history => {
        const viewer = new Viewer()
        let before: ApiState | undefined
        for (const events of history) {
          const state = viewer.take(events)
          expect(bytesOf(state)).toEqual(bytesOf(viewer.anew()))
          if (before !== undefined) expectSharing(before, state)
          before = state
        }
      }),
      { numRuns: runs(150) },
    )
  })
})

describe('a change of a Service', () => {
  const SLICE = 100
  const ONE = { ports: [{ name: '', port: 80 }] }
  const podsOf = (index: number, first = 0) =>
    Array.from({ length: SLICE }, (_, slot) =>
      endpoint(`10.1.${index}.${slot === 0 ? first : slot}`, { hostname: `pod-${index}-${slot}` }),
    )
  const named = (index: number) => `s${String(index).padStart(3, '0')}`
  const start = (slices: number) => {
    const viewer = new Viewer()
    viewer.take([
      ...[node(), service('a')].map(detailed),
      ...Array.from({ length: slices }, (_, index) => detailed(slice(named(index), 'a', podsOf(index), ONE))),
    ])
    return viewer
  }
  /** Paths of all objects that are made or compared while it runs, in this order. */
  const madeBy = (run: () => void): readonly string[] => {
    const made = vi.spyOn(ObjectMaker.prototype, 'make')
    run()
    const paths = made.mock.calls.map(([{ path }]) => path)
    made.mockRestore()
    return paths
  }

  it.each([1, 10, 50])('makes what says something else and no more, of %i slices', slices => {
    const viewer = start(slices)
    const take = (...objects: readonly object[]) => madeBy(() => viewer.take(objects.map(detailed)))
    const first = named(0)
    const [, ...others] = podsOf(0)
    expect(take(slice(first, 'a', podsOf(0, 200), ONE)), 'another address').toEqual(['ns/a/10.1.0.200'])
    expect(take(slice(first, 'a', others, ONE)), 'one that goes').toEqual([])
    const renamed = [endpoint('10.1.0.200', { hostname: 'other' }), ...others]
    expect(take(slice(first, 'a', renamed, ONE)), 'one that comes').toEqual(['ns/a/10.1.0.200'])
    const again = [endpoint('10.1.0.200', { hostname: 'again' }), ...others]
    expect(take(slice(first, 'a', again, ONE)), 'a hostname').toEqual(['ns/a/10.1.0.200'])
    const here = [endpoint('10.1.0.200', { hostname: 'again', nodeName: 'here' }), ...others]
    expect(take(slice(first, 'a', here, ONE)), 'its node').toEqual(['ns/a/10.1.0.200'])
    expect(
      take(
        slice(first, 'a', here, {
          ...ONE,
          metadata: { labels: { 'kubernetes.io/service-name': 'a', x: 'y' } },
        }),
      ),
    ).toEqual([])
    expect(take(service('a', {}, { metadata: { labels: { x: 'y' } } })), 'the Service').toEqual(['ns/a'])
    expect(take(slice('t', 'a', podsOf(250), ONE)), 'a slice that comes').toHaveLength(SLICE)
    viewer.take([{ kind: 'EndpointSlice', key: 'ns/t', value: undefined }])
    expect(viewer.anew().endpoints.size).toBe(slices * SLICE)
  })

  it('makes all endpoints anew when its policy or its ports concern all', () => {
    const viewer = start(2)
    const take = (spec: object) => madeBy(() => viewer.take([detailed(service('a', { ...spec }))]))
    expect(take({ externalTrafficPolicy: 'Local', type: 'NodePort' })).toHaveLength(1 + 2 * SLICE)
    expect(take({ ports: [{ port: 80, targetPort: 'web' }] })).toHaveLength(1 + 2 * SLICE)
  })

  it('pauses between the objects of a Service, and between Services', async () => {
    const whole = [
      node(),
      service('a'),
      ...[0, 1, 2].map(index => slice(named(index), 'a', podsOf(index), ONE)),
    ]
    const lone = [
      node(),
      ...Array.from({ length: 300 }, (_, n) => service(`l${n}`, { ports: [{ port: 80 + n }] })),
    ]
    for (const objects of [whole, lone]) {
      const snapshot = applyEvents(EMPTY_SNAPSHOT, objects.map(detailed))
      const { table } = finish(resolve(OPTIONS, undefined, snapshot))
      let [nowMs, pauses] = [0, 0]
      const breathe = async () => void pauses++
      await nextApiState(undefined, { snapshot, table }, { sliceMs: 1, nowMs: () => nowMs++, breathe })
      expect(pauses).toBeGreaterThanOrEqual(300)
    }
  })
})

function expectSharing(before: ApiState, after: ApiState): void {
  for (const set of ['services', 'endpoints'] as const)
    for (const object of after[set].values()) {
      const old = before[set].get(object.path)
      if (old !== undefined && messageIn(old).equals(messageIn(object))) expect(object).toBe(old)
    }
  const isSame = before.number === after.number
  expect(isSame).toBe(before === after)
  if (!isSame) expect([...difference(before, after)].length).toBeGreaterThan(0)
}

describe('a client that applies differences', () => {
  it('knows the full state after each, however many it has missed', () => {
    const anyPace = fc.array(fc.boolean(), { minLength: 12, maxLength: 12 })
    fc.assert(
      fc.property(anyHistory, fc.array(anyPace, { minLength: 1, maxLength: 3 }), (history, paces) => {
        const viewer = new Viewer()
        const feed = new ApiFeed({ clock: { nowMs: () => 0 }, source: () => undefined })
        const readers = paces.map(() => new Reader(feed))
        for (const [step, events] of history.entries()) {
          feed.offer(viewer.take(events))
          for (const [index, reader] of readers.entries()) if (paces[index]?.[step]) reader.read()
          expect(feed.kept).toBeLessThanOrEqual(readers.length + 1)
        }
        for (const reader of readers) reader.read()
        expect(feed.kept).toBe(1)
      }),
      { numRuns: runs(150) },
    )
  })

  it.skipIf(IS_QUICK)('costs what differs, and not how often it changed', () => {
    const viewer = new Viewer()
    const feed = new ApiFeed({ clock: { nowMs: () => 0 }, source: () => undefined })
    feed.offer(viewer.take([node(), service('a')].map(detailed)))
    const stalled = new Reader(feed)
    const slow = new Reader(feed)
    stalled.read()
    for (let round = 0; round < 500; round++) {
      const last = 1 + (round % 7)
      feed.offer(viewer.take([detailed(slice('s', 'a', [endpoint(`10.1.0.${last}`)]))]))
      if (round % 100 === 50) slow.read()
    }
    // What every version in between held is forgotten: of 500, the stalled one's, the slow one's and the newest are kept.
    expect(feed.kept).toBe(3)
    expect(stalled.versionsBehind()).toBeLessThanOrEqual(3)
    stalled.read()
    expect(feed.kept).toBe(2)
  })
})

class Reader {
  readonly #feed: ApiFeed
  readonly #client = new Client()
  #seen: ApiState | undefined

  constructor(feed: ApiFeed) {
    this.#feed = feed
  }

  read(): void {
    const state = this.#feed.current
    if (state === undefined || state === this.#seen) return
    this.#feed.hold(state)
    this.#client.apply(difference(this.#seen, state))
    if (this.#seen !== undefined) this.#feed.release(this.#seen)
    this.#seen = state
    expect(this.#client.content).toEqual(bytesOf(state))
  }

  versionsBehind(): number {
    return this.#seen === undefined ? 0 : PersistentMap.lineage(this.#seen.endpoints).length
  }
}
