import fc from 'fast-check'
import type { Cidr } from '../../../src/base/ip.ts'
import type { FrontendTable, Route, ServiceFrontends } from '../../../src/model/frontend.ts'
import type { Protocol } from '../../../src/model/service.ts'
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
} from '../../support/frontends.ts'
import { runs } from '../../support/runs.ts'

/** What a Service may look like at one moment, as numbers that say little by themselves. */
export interface Shape {
  readonly index: number
  readonly cluster: number
  readonly local: number
  readonly from: number
  readonly timeoutS: number
  readonly external: Route | undefined
  readonly internal: Route
  readonly ranged: boolean
  readonly v6: boolean
  /** Has a load-balancer address that others have, too, at other ports. */
  readonly shared: boolean
  /** Has an address of the node, at the number of another Service's NodePort. */
  readonly onNode: boolean
  readonly scheduler: string | undefined
  readonly protocol: Protocol
}

const SERVICES = 6
const NODE_IP = ip4(192, 168, 0, 2)
const NODE_IP_6 = ip6(0x99, 2)
const RANGES: readonly Cidr[] = [
  { ip: ip4(10, 1, 0, 0), bits: 16 },
  { ip: ip4(10, 2, 3, 4), bits: 32 },
]
const RANGES_6: readonly Cidr[] = [{ ip: ip6(0x10, 0), bits: 64 }]

export function shaped(shape: Shape): ServiceFrontends {
  const { index, v6, external, internal, timeoutS, scheduler, protocol } = shape
  const address = (prefix: number) => (v6 ? ip6(prefix, index) : ip4(10, prefix, 0, index))
  const ranges = shape.ranged ? (v6 ? RANGES_6 : RANGES) : undefined
  const outside =
    external === undefined
      ? []
      : [
          nodePort(30_000 + index, external),
          vip(address(200), 80, external, ranges),
          ...(shape.shared ? [vip(v6 ? ip6(201, 1) : ip4(10, 201, 0, 1), 1_000 + index, external)] : []),
          ...(shape.onNode ? [vip(v6 ? NODE_IP_6 : NODE_IP, 30_001 + (index % SERVICES), external)] : []),
        ]
  const cluster = backends(shape.cluster, { v6, from: shape.from })
  const local = backends(shape.local, { v6, from: shape.from, local: true })
  return service(`ns/s${index}`, [
    {
      v6,
      affinityTimeoutS: timeoutS,
      scheduler,
      protocol,
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
  index: fc.integer({ min: 1, max: SERVICES }),
  cluster: fc.oneof(fc.integer({ min: 0, max: 5 }), fc.integer({ min: 14, max: 40 })),
  local: fc.integer({ min: 0, max: 3 }),
  from: fc.integer({ min: 1, max: 4 }),
  timeoutS: fc.constantFrom(0, 0, 60),
  external: fc.constantFrom(undefined, REJECT, DROP, EXTERNAL, EXTERNAL, EXTERNAL_LOCAL, EXTERNAL_LOCAL),
  internal: fc.constantFrom(CLUSTER, LOCAL, REJECT, DROP),
  ranged: fc.boolean(),
  v6: fc.boolean(),
  shared: fc.boolean(),
  onNode: fc.boolean(),
  scheduler: fc.constantFrom(undefined, undefined, 'lc', 'none-such'),
  protocol: fc.constantFrom<Protocol>('TCP', 'TCP', 'SCTP'),
})

export type Change =
  | { readonly kind: 'set'; readonly shape: Shape }
  | { readonly kind: 'remove'; readonly index: number }
  | { readonly kind: 'quarantine'; readonly index: number }
  | {
      readonly kind: 'node'
      readonly pods: boolean
      readonly only: boolean
      readonly cidrs: boolean
      /** How many addresses other devices have: those of the node, and then one that a Service has as well. */
      readonly ips: number
    }

const changes: fc.Arbitrary<Change> = fc.oneof(
  { weight: 8, arbitrary: shapes.map((shape): Change => ({ kind: 'set', shape })) },
  {
    weight: 2,
    arbitrary: fc.integer({ min: 1, max: SERVICES }).map((index): Change => ({ kind: 'remove', index })),
  },
  {
    weight: 1,
    arbitrary: fc.integer({ min: 1, max: SERVICES }).map((index): Change => ({ kind: 'quarantine', index })),
  },
  {
    weight: 1,
    arbitrary: fc
      .record({
        pods: fc.boolean(),
        only: fc.boolean(),
        cidrs: fc.boolean(),
        ips: fc.integer({ min: 0, max: 4 }),
      })
      .map((node): Change => ({ kind: 'node', ...node })),
  },
)

/** A small cluster that changes step by step. */
export class World {
  readonly #services = new Map<number, ServiceFrontends>()
  readonly without = new Set<string>()
  #rest = nodeOf({ kind: 'node', pods: true, only: false, cidrs: true, ips: 3 })
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

/** Renders the table of a world, from the state before. */
type Render<State> = (world: World, base: State) => State

/** A state that a mode begins with, and how it renders the next. */
interface Course<State> {
  readonly empty: State
  readonly next: Render<State>
  /** Sequences that `npm test` and unit-rest try in all: see runs.ts. */
  readonly tries: number
}

/** Calls `check` after each change of a small cluster, for many sequences of changes. */
export function atEachStep<State>(course: Course<State>, check: Check<State>): void {
  forSequences(course, 12, (state, world) => check(state, world))
}

/** Calls `check` after the last change, for many sequences of changes. */
export function atTheEnd<State>(course: Course<State>, check: Check<State>): void {
  forSequences(course, 8, (state, world, isLast) => {
    if (isLast) check(state, world)
  })
}

type Check<State> = (state: State, world: World) => void

function forSequences<State>(
  { empty, next, tries }: Course<State>,
  maxLength: number,
  after: (state: State, world: World, isLast: boolean) => void,
): void {
  fc.assert(
    fc.property(fc.array(changes, { minLength: 1, maxLength }), steps => {
      const world = new World()
      let state = empty
      for (const [at, step] of steps.entries()) {
        world.apply(step)
        state = next(world, state)
        after(state, world, at === steps.length - 1)
      }
    }),
    { numRuns: runs(tries) },
  )
}

function nodeOf(change: Extract<Change, { kind: 'node' }>): Partial<Omit<FrontendTable, 'services'>> {
  return {
    node: { ips: [], podCidrs: change.pods ? [{ ip: ip4(10, 20, 0, 0), bits: 16 }] : [] },
    nodePorts: {
      IPv4: change.only ? { kind: 'only', ips: [NODE_IP] } : { kind: 'all' },
      IPv6: { kind: 'all' },
    },
    localIps: [NODE_IP, ip4(192, 168, 1, 2), NODE_IP_6, ip4(10, 200, 0, 1)].slice(0, change.ips),
    serviceCidrs: change.cidrs ? [{ ip: ip4(10, 96, 0, 0), bits: 12 }] : [],
  }
}
