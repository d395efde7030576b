import { performance } from 'node:perf_hooks'
import { type ApiProjection, nextApiState } from '../../src/api/next-state.ts'
import { difference } from '../../src/api/state.ts'
import { finish } from '../../src/base/clock.ts'
import { type Resolved, resolve } from '../../src/model/resolve.ts'
import { applyEvents, EMPTY_SNAPSHOT, type SourceEvent } from '../../src/model/snapshot.ts'
import { detailed } from '../unit/api/views.ts'
import { OPTIONS } from '../unit/model/objects.ts'
import { serviceObject } from './cluster.ts'
import { goal, median, print } from './report.ts'

const SIZES = [10, 1_000, 10_000]
/** As the EndpointSlice controller fills them. */
const SLICE = 100
/** Services beside the one that changes. */
const OTHERS = 100
const OF_OTHERS = 10
const ROUNDS = 300
/** Before those that count: a daemon that runs for days has compiled what it runs. */
const ROUNDS_BEFORE = 700
/**
 * Of resolve's own time for the same event, which looks at each endpoint of the Service. The bound from below is what back
 * ends have to be told: of one endpoint two objects (one goes, one comes), of a slice whose pods are all others 200.
 */
const TIMES_RESOLVE = 3

type Change = (shape: Shape, round: number) => SourceEvent

const KINDS: Readonly<Record<string, Change>> = {
  'one endpoint': (shape, one) => sliceEvent(0, firstSlice(shape), { ...shape, one }),
  'a slice': (shape, all) => sliceEvent(0, firstSlice(shape), { ...shape, all }),
}

const rows = Object.entries(KINDS).flatMap(([kind, change]) =>
  [false, true].flatMap(named => SIZES.map(endpoints => rowOf(kind, { endpoints, named }, change))),
)
print(`a Service among ${OTHERS} others, medians of ${ROUNDS} changes of it`, rows)

interface Times {
  readonly resolveUs: number
  readonly projectUs: number
  /** That back ends are told of, set or deleted. */
  readonly objects: number
}

interface Shape {
  readonly endpoints: number
  /** Each endpoint has a hostname. */
  readonly named: boolean
}

function rowOf(kind: string, shape: Shape, change: Change): Readonly<Record<string, string>> {
  const { resolveUs, projectUs, objects } = measure(shape, change)
  const ratio = projectUs / resolveUs
  return {
    changes: kind,
    endpoints: String(shape.endpoints),
    hostnames: shape.named ? 'yes' : 'no',
    objects: String(objects),
    'resolve us': resolveUs.toFixed(0),
    'nextApiState us': projectUs.toFixed(0),
    'us an object': (projectUs / objects).toFixed(2),
    'x resolve': `${ratio.toFixed(2)} ${kind === 'one endpoint' ? goal(ratio, TIMES_RESOLVE) : ''}`,
  }
}

function firstSlice({ endpoints }: Shape): number {
  return Math.min(endpoints, SLICE)
}

/** Both in this process, one behind the other, for the same events. */
function measure({ endpoints, named }: Shape, change: Change): Times {
  let resolved = resolvedAfter(undefined, firstEvents(endpoints, named)).resolved
  let projection: ApiProjection = finish(nextApiState(undefined, resolved))
  const [resolveUs, projectUs]: [number[], number[]] = [[], []]
  let objects = 0
  for (let round = 0; round < ROUNDS_BEFORE + ROUNDS; round++) {
    const next = resolvedAfter(resolved, [change({ endpoints, named }, round + 1)])
    resolved = next.resolved
    const start = performance.now()
    const now: ApiProjection = finish(nextApiState(projection, resolved))
    const us = (performance.now() - start) * 1_000
    objects = [...difference(projection.state, now.state)].length
    if (objects === 0) throw new Error('a change changed nothing')
    projection = now
    if (round < ROUNDS_BEFORE) continue
    resolveUs.push(next.us)
    projectUs.push(us)
  }
  return { resolveUs: median(resolveUs), projectUs: median(projectUs), objects }
}

function resolvedAfter(
  before: Resolved | undefined,
  events: readonly SourceEvent[],
): { readonly resolved: Resolved; readonly us: number } {
  const snapshot = applyEvents(before?.snapshot ?? EMPTY_SNAPSHOT, events)
  const start = performance.now()
  const resolved = finish(resolve(OPTIONS, before, snapshot))
  return { resolved, us: (performance.now() - start) * 1_000 }
}

function firstEvents(endpoints: number, named: boolean): readonly SourceEvent[] {
  const slices = Math.ceil(endpoints / SLICE)
  return [
    detailed(serviceObject(0)),
    ...Array.from({ length: slices }, (_, index) =>
      sliceEvent(index, Math.min(SLICE, endpoints - index * SLICE), { named }),
    ),
    ...Array.from({ length: OTHERS }, (_, index) => detailed(serviceObject(1 + index))),
    ...Array.from({ length: OTHERS }, (_, index) => sliceEvent(0, OF_OTHERS, { named, service: 1 + index })),
  ]
}

interface SliceState {
  readonly named: boolean
  readonly service?: number
  /** The round in which its first endpoint, or each of them, got another address. */
  readonly one?: number
  readonly all?: number
}

/** Pods of a slice: 10.SERVICE.SLICE.SLOT, and 11.x after every second change. */
function sliceEvent(
  index: number,
  endpoints: number,
  { named, service = 0, one = 0, all = 0 }: SliceState,
): SourceEvent {
  return detailed({
    apiVersion: 'discovery.k8s.io/v1',
    kind: 'EndpointSlice',
    metadata: {
      namespace: `ns-${service % 50}`,
      name: `service-${service}-${String(index).padStart(3, '0')}`,
      labels: { 'kubernetes.io/service-name': `service-${service}` },
    },
    addressType: 'IPv4',
    ports: [{ name: 'http', protocol: 'TCP', port: 8080 }],
    endpoints: Array.from({ length: endpoints }, (_, slot) => ({
      addresses: [`${10 + ((slot === 0 ? one + 1 : all + 1) % 2)}.${service}.${index}.${slot}`],
      conditions: { ready: true, serving: true, terminating: false },
      nodeName: `node-${slot}`,
      ...(named ? { hostname: `pod-${index}-${slot}` } : {}),
    })),
  })
}
