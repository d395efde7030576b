import type { Cancel, Clock } from '../../../src/base/clock.ts'
import { type ClusterShape, type Placed, sliceOf, slicesOf } from './generator.ts'
import type { Random } from './random.ts'
import type { Store } from './store.ts'

/** Changes of endpoints in the shapes that clusters show; each is the next state of one slice. */
export type Changes = Iterator<Placed, undefined>

interface ChurnOptions {
  readonly shape: ClusterShape
  readonly random: Random
  /** Of now, for the annotation that latency is measured by. */
  readonly triggered?: () => string
}

/** One endpoint of some slice is replaced by a pod that was never there before, without end. */
export function* replacements({ shape, random, triggered }: ChurnOptions): Generator<Placed, undefined> {
  const pods = new PodTable(shape)
  for (;;) {
    const service = random.int(0, shape.services - 1)
    const number = random.int(0, pods.slicesOf(service) - 1)
    const held = [...pods.of(service, number)]
    if (held.length > 0) held[random.int(0, held.length - 1)] = pods.fresh()
    yield pods.put({ service, number, pods: held, ...triggerOf(triggered) })
  }
}

/** All endpoints of these Services are replaced, a quarter more than needed at a time. */
export function* rollingUpdate(
  { shape, triggered }: ChurnOptions,
  services: readonly number[],
): Generator<Placed, undefined> {
  const pods = new PodTable(shape)
  const surge = Math.max(1, Math.floor(shape.endpointsPerService / 4))
  const slices = services.flatMap(service =>
    Array.from({ length: pods.slicesOf(service) }, (_, number) => ({ service, number })),
  )
  for (const { service, number } of slices) {
    const old = [...pods.of(service, number)]
    const made: number[] = []
    while (old.length > 0) {
      const count = Math.min(surge, old.length)
      made.push(...Array.from({ length: count }, () => pods.fresh()))
      yield pods.put({ service, number, pods: [...old, ...made], ...triggerOf(triggered) })
      old.splice(0, count)
      yield pods.put({ service, number, pods: [...old, ...made], ...triggerOf(triggered) })
    }
  }
  return undefined
}

/** The first endpoint of a Service becomes ready and unready by turns, without end. */
export function* flaps({ shape, triggered }: ChurnOptions, service: number): Generator<Placed, undefined> {
  const pods = new PodTable(shape)
  const [first = 0, ...rest] = pods.of(service, 0)
  for (let ready = false; ; ready = !ready) {
    const unready = new Set(ready ? [] : [first])
    yield pods.put({ service, number: 0, pods: [first, ...rest], unready, ...triggerOf(triggered) })
  }
}

interface SliceState {
  readonly service: number
  readonly number: number
  readonly pods: readonly number[]
  readonly unready?: ReadonlySet<number>
  readonly triggered?: string
}

class PodTable {
  readonly #shape: ClusterShape
  readonly #slices = new Map<string, readonly number[]>()
  #next: number

  constructor(shape: ClusterShape) {
    this.#shape = shape
    this.#next = shape.services * shape.endpointsPerService
  }

  fresh(): number {
    return this.#next++
  }

  slicesOf(service: number): number {
    return slicesOf(service, this.#shape).length
  }

  of(service: number, number: number): readonly number[] {
    const { endpointsPerService: count, endpointsPerSlice = 100 } = this.#shape
    const first = number * endpointsPerSlice
    const length = Math.max(0, Math.min(endpointsPerSlice, count - first))
    const start = Array.from({ length }, (_, slot) => service * count + first + slot)
    return this.#slices.get(`${service}/${number}`) ?? start
  }

  put({ service, ...content }: SliceState): Placed {
    this.#slices.set(`${service}/${content.number}`, content.pods)
    return { resource: 'endpointslices', object: sliceOf(service, { ...this.#shape, ...content }) }
  }
}

function triggerOf(triggered: (() => string) | undefined): { readonly triggered?: string } {
  return triggered === undefined ? {} : { triggered: triggered() }
}

interface DriveOptions {
  readonly store: Store
  readonly clock: Clock
  readonly perSecond: number
  /** Called after each change. */
  readonly made?: (placed: Placed) => void
}

const TICK_MS = 10

/** Makes changes at this rate, evenly, until there are none left or the result is called. */
export function drive(changes: Changes, { store, clock, perSecond, made }: DriveOptions): Cancel {
  const startMs = clock.nowMs()
  let count = 0
  let cancel: Cancel
  const tick = () => {
    const due = Math.floor(((clock.nowMs() - startMs) * perSecond) / 1_000)
    for (; count < due; count++) {
      const next = changes.next()
      if (next.done === true) return
      store.put(next.value.resource, next.value.object)
      made?.(next.value)
    }
    cancel = clock.after(TICK_MS, tick)
  }
  cancel = clock.after(TICK_MS, tick)
  return () => cancel()
}
