import type { Cancel, Clock } from '../../../src/base/clock.ts'
import { type ClusterShape, type Placed, podsIn, sliceCountOf, sliceOf } from './generator.ts'
import type { Random } from './random.ts'
import type { Store } from './store.ts'

/** Changes of endpoints in the shapes that clusters show; each is the next state of one slice. */
export type Changes = Iterator<Placed, undefined>

interface ChurnOptions {
  readonly shape: ClusterShape
  readonly random: Random
}

/** One endpoint of some slice is replaced by a pod that was never there before, without end. */
export function* replacements({ shape, random }: ChurnOptions): Generator<Placed, undefined> {
  const changed = new Map<string, readonly number[]>()
  let next = shape.services * shape.endpointsPerService
  for (;;) {
    const service = random.int(0, shape.services - 1)
    const number = random.int(0, sliceCountOf(shape) - 1)
    const key = `${service}/${number}`
    const pods = [...(changed.get(key) ?? podsIn(service, number, shape))]
    if (pods.length > 0) pods[random.int(0, pods.length - 1)] = next++
    changed.set(key, pods)
    yield { resource: 'endpointslices', object: sliceOf(service, { ...shape, number, pods }) }
  }
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
