import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Cidr } from '../../../../src/base/cidr.ts'
import { finish } from '../../../../src/base/steps.ts'
import { adoptRuleset } from '../../../../src/dataplane/nftables/adopt.ts'
import { EMPTY_STATE, type NftablesState } from '../../../../src/dataplane/nftables/state.ts'
import type { Backend, FrontendTable, Route, ServiceFrontends } from '../../../../src/model/frontend.ts'
import {
  backends,
  CLUSTER,
  clusterIp,
  DROP,
  EXTERNAL,
  EXTERNAL_LOCAL,
  ip4,
  ip6,
  LOCAL,
  nodePort,
  REJECT,
  service,
  table,
  vip,
} from './frontends.ts'
import { complaints, differences, elementsOf, listing, render, routes, tableIn } from './inspect.ts'

/** What a Service may look like at one moment, as numbers that say little by themselves. */
interface Shape {
  readonly index: number
  readonly cluster: number
  readonly local: number
  readonly from: number
  readonly timeoutS: number
  readonly external: Route | undefined
  readonly internal: Route
  readonly ranged: boolean
  readonly v6: boolean
}

const RANGES: readonly Cidr[] = [
  { ip: ip4(10, 1, 0, 0), bits: 16 },
  { ip: ip4(10, 2, 3, 4), bits: 32 },
]
const RANGES_6: readonly Cidr[] = [{ ip: ip6(0x10, 0), bits: 64 }]

function shaped(shape: Shape): ServiceFrontends {
  const { index, v6, external, internal, timeoutS } = shape
  const address = (prefix: number) => (v6 ? ip6(prefix, index) : ip4(10, prefix, 0, index))
  const ranges = shape.ranged ? (v6 ? RANGES_6 : RANGES) : undefined
  const outside =
    external === undefined
      ? []
      : [nodePort(30_000 + index, external), vip(address(200), 80, external, ranges)]
  const cluster = backends(shape.cluster, { v6, from: shape.from })
  const local = backends(shape.local, { v6, from: shape.from, local: true })
  return service(`ns/s${index}`, [
    {
      v6,
      affinityTimeoutS: timeoutS,
      frontends: [clusterIp(address(96), 80, internal), ...outside],
      cluster,
      local,
    },
    {
      v6,
      name: 'dns',
      protocol: 'UDP',
      frontends: [clusterIp(address(96), 53)],
      cluster: [...cluster, ...local],
    },
  ])
}

const shapes: fc.Arbitrary<Shape> = fc.record({
  index: fc.integer({ min: 1, max: 6 }),
  cluster: fc.oneof(fc.integer({ min: 0, max: 5 }), fc.integer({ min: 14, max: 40 })),
  local: fc.integer({ min: 0, max: 3 }),
  from: fc.integer({ min: 1, max: 4 }),
  timeoutS: fc.constantFrom(0, 0, 60),
  external: fc.constantFrom(undefined, REJECT, DROP, EXTERNAL, EXTERNAL_LOCAL),
  internal: fc.constantFrom(CLUSTER, LOCAL, REJECT, DROP),
  ranged: fc.boolean(),
  v6: fc.boolean(),
})

type Change =
  | { readonly kind: 'set'; readonly shape: Shape }
  | { readonly kind: 'remove'; readonly index: number }
  | { readonly kind: 'quarantine'; readonly index: number }
  | { readonly kind: 'node'; readonly pods: boolean; readonly only: boolean; readonly cidrs: boolean }

const changes: fc.Arbitrary<Change> = fc.oneof(
  { weight: 8, arbitrary: shapes.map((shape): Change => ({ kind: 'set', shape })) },
  {
    weight: 2,
    arbitrary: fc.integer({ min: 1, max: 6 }).map((index): Change => ({ kind: 'remove', index })),
  },
  {
    weight: 1,
    arbitrary: fc.integer({ min: 1, max: 6 }).map((index): Change => ({ kind: 'quarantine', index })),
  },
  {
    weight: 1,
    arbitrary: fc
      .record({ pods: fc.boolean(), only: fc.boolean(), cidrs: fc.boolean() })
      .map((node): Change => ({ kind: 'node', ...node })),
  },
)

/** A small cluster that changes step by step. */
class World {
  readonly #services = new Map<number, ServiceFrontends>()
  readonly without = new Set<string>()
  #rest: Partial<Omit<FrontendTable, 'services'>> = {}
  table = table([])

  apply(change: Change): void {
    if (change.kind === 'set') this.#services.set(change.shape.index, shaped(change.shape))
    else if (change.kind === 'remove') this.#services.delete(change.index)
    else if (change.kind === 'quarantine') {
      const key = `ns/s${change.index}`
      if (!this.without.delete(key)) this.without.add(key)
    } else this.#rest = nodeOf(change)
    const next = table([...this.#services.values()], this.#rest)
    // As the model does it: what did not change is the same object, in a version of the same map.
    const { services, localBackends } = this.table
    this.table = {
      ...next,
      services: services.with([
        ...[...services.keys()].map(key => [key, next.services.get(key)] as const),
        ...next.services.entries(),
      ]),
      localBackends: localBackends.with([
        ...[...localBackends.keys()].map(key => [key, next.localBackends.get(key)] as const),
        ...next.localBackends.entries(),
      ]),
    }
  }
}

function nodeOf(change: Extract<Change, { kind: 'node' }>): Partial<Omit<FrontendTable, 'services'>> {
  return {
    node: { ips: [], podCidrs: change.pods ? [{ ip: ip4(10, 20, 0, 0), bits: 16 }] : [] },
    nodePorts: {
      IPv4: change.only ? { kind: 'only', ips: [ip4(192, 168, 0, 2)] } : { kind: 'all' },
      IPv6: { kind: 'all' },
    },
    serviceCidrs: change.cidrs ? [{ ip: ip4(10, 96, 0, 0), bits: 12 }] : [],
  }
}

/** Endpoints that frontends lead to, read from elements alone: what packets would find. */
function served(state: NftablesState): string[] {
  return (['ip', 'ip6'] as const).flatMap(family => {
    const all = elementsOf(tableIn(state, family))
    const endpoints = all.filter(({ set }) => set === 'endpoints')
    return all
      .filter(({ set }) => set === 'frontends' || set === 'nodeports')
      .map(({ comment, data }) => {
        const lists = [0, 0x10].map(bit => {
          if (typeof data !== 'string') return []
          // The list id is V without its code: bytes 2 and 3 whole, the upper bits of byte 1.
          const first = String.fromCharCode(0, (data.charCodeAt(1) & 0xe0) | bit) + data.slice(2)
          return endpoints.flatMap(({ key, data: to }) => (key.startsWith(first) ? String(to) : [])).sort()
        })
        return `${family} ${comment} ${JSON.stringify(lists)}`
      })
      .sort()
  })
}

function expected(world: World): string[] {
  const data = ({ ip, port }: Backend) => `${ip}${String.fromCharCode(port >>> 8, port & 255)}\0\0`
  return (['ip', 'ip6'] as const).flatMap(family =>
    [...world.table.services.values()]
      .filter(one => !world.without.has(one.service))
      .flatMap(one => one.ports)
      .filter(port => (port.family === 'IPv4') === (family === 'ip'))
      .flatMap(port => {
        const uses = port.frontends.map(({ route }) => route)
        const cluster = uses.some(route => route.kind.startsWith('external') || route === CLUSTER)
        const local = uses.some(route => route === EXTERNAL_LOCAL || route === LOCAL)
        const lists = [cluster ? port.cluster : [], local ? port.local : []].map(list =>
          list.map(data).sort(),
        )
        return port.frontends.map(() => `${family} ${port.displayName} ${JSON.stringify(lists)}`)
      })
      .sort(),
  )
}

function observed(state: NftablesState): NftablesState {
  return finish(adoptRuleset(listing(state.ruleset)))
}

describe('a table that changes step by step', () => {
  it('is at every step what a full render gives, holds together, and serves what the model says', () => {
    fc.assert(
      fc.property(fc.array(changes, { minLength: 1, maxLength: 12 }), steps => {
        const world = new World()
        let state = EMPTY_STATE
        for (const step of steps) {
          world.apply(step)
          const without = new Set(world.without)
          state = render(world.table, state, { without })
          expect(complaints(state)).toEqual([])
          expect(served(state)).toEqual(expected(world))
          const full = render(world.table, { ...state, frontends: undefined }, { without })
          expect(differences(state, full)).toEqual([])
          expect(differences(full, state)).toEqual([])
        }
      }),
      { numRuns: 150 },
    )
  })

  it('is adopted from a listing without a difference', () => {
    fc.assert(
      fc.property(fc.array(changes, { minLength: 1, maxLength: 8 }), steps => {
        const world = new World()
        let state = EMPTY_STATE
        for (const step of steps) {
          world.apply(step)
          state = render(world.table, state, { without: new Set(world.without) })
        }
        const base = observed(state)
        const again = render(world.table, base, { without: new Set(world.without) })
        expect(differences(base, again)).toEqual([])
        expect(['ip', 'ip6'].map(family => routes(tableIn(again, family === 'ip' ? 'ip' : 'ip6')))).toEqual(
          ['ip', 'ip6'].map(family => routes(tableIn(state, family === 'ip' ? 'ip' : 'ip6'))),
        )
      }),
      { numRuns: 100 },
    )
  })

  it('ends the same, numbers apart, whether it changed step by step or came at once', () => {
    fc.assert(
      fc.property(fc.array(changes, { minLength: 1, maxLength: 8 }), steps => {
        const world = new World()
        let state = EMPTY_STATE
        for (const step of steps) {
          world.apply(step)
          state = render(world.table, state, { without: new Set(world.without) })
        }
        const once = render(world.table, EMPTY_STATE, { without: new Set(world.without) })
        expect(served(once)).toEqual(served(state))
        for (const family of ['ip', 'ip6'] as const)
          expect(routes(tableIn(once, family))).toEqual(routes(tableIn(state, family)))
      }),
      { numRuns: 50 },
    )
  })
})
