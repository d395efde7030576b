import type { Cancel, Clock } from '../../../src/base/clock.ts'
import { type ClusterShape, type Placed, SLICE_ENDPOINTS_MAX, sliceOf, slicesOf } from './generator.ts'
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

interface SliceState {
  readonly service: number
  readonly number: number
  readonly pods: readonly number[]
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
    const { endpointsPerService: count } = this.#shape
    const first = number * SLICE_ENDPOINTS_MAX
    const length = Math.max(0, Math.min(SLICE_ENDPOINTS_MAX, count - first))
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
