import type { Cancel, Clock } from '../base/clock.ts'
import { fitting, type LeftOut, NOTHING_HELD, type ObjectBudget } from '../model/object-budget.ts'
import { EMPTY_SNAPSHOT, type Snapshot } from '../model/snapshot.ts'
import type { LocatedRefusal } from '../source/source.ts'

export interface LeftOutOptions {
  readonly clock: Clock
  readonly partsMax?: number | undefined
  /** Objects that no Service speaks for, after what the source refuses; at each change. */
  readonly refusals: (list: readonly LocatedRefusal[]) => void
  /** There is room for these again. */
  readonly reread: (objects: readonly LeftOut[]) => void
}

/** From a change to the look at what is left out. */
const LOOK_MS = 1_000
/** From one list to the next one, and for each object there is; twice as long each time while anything is left out. */
const REREAD_MS = 30_000
const REREAD_OBJECT_MS = 5
const REREAD_MS_MAX = 3_600_000
/** Refusals that are reported by name. */
const ORPHANS_MAX = 1_000

/**
 * Follows the objects that are left out for want of memory: reports slices that belong to no Service, whose refusal no
 * Service bears, and has objects read again once there is room for them.
 */
export class LeftOutWatch {
  readonly #options: LeftOutOptions
  #snapshot = EMPTY_SNAPSHOT
  #budget = NOTHING_HELD
  #ofSource: readonly LocatedRefusal[] = []
  #orphans: readonly LocatedRefusal[] = []
  #timer: Cancel | undefined
  #timerAtMs = Number.POSITIVE_INFINITY
  /** The next list may be asked for at this time (monotonic milliseconds). */
  #rereadMs = 0
  #rereads = 0

  constructor(options: LeftOutOptions) {
    this.#options = options
  }

  /** What the source refuses now. */
  refused(list: readonly LocatedRefusal[]): void {
    this.#ofSource = list
    this.#report()
  }

  follow(snapshot: Snapshot, budget: ObjectBudget): void {
    this.#snapshot = snapshot
    this.#budget = budget
    if (budget.leftOut.size + this.#orphans.length > 0) this.#lookWithin(LOOK_MS)
    else this.#rereads = 0
  }

  /** Nothing is called any more until the next `follow` or `refused`. */
  stop(): void {
    this.#timer?.()
    this.#timerAtMs = Number.POSITIVE_INFINITY
  }

  #lookWithin(delayMs: number): void {
    const { clock } = this.#options
    const atMs = clock.nowMs() + delayMs
    if (atMs >= this.#timerAtMs) return
    this.#timer?.()
    this.#timerAtMs = atMs
    this.#timer = clock.after(delayMs, () => {
      this.#timerAtMs = Number.POSITIVE_INFINITY
      this.#look()
    })
  }

  #look(): void {
    const orphans = orphansIn(this.#snapshot, this.#budget)
    const isSame =
      orphans.length === this.#orphans.length &&
      orphans.every(({ refusal }, at) => refusal === this.#orphans[at]?.refusal)
    this.#orphans = orphans
    if (!isSame) this.#report()
    this.#reread()
  }

  #reread(): void {
    const { clock, partsMax = Number.POSITIVE_INFINITY, reread } = this.#options
    const nowMs = clock.nowMs()
    const snapshot = this.#snapshot
    const objects = fitting({ partsMax, budget: this.#budget, snapshot })
    if (objects.length === 0) return
    if (nowMs >= this.#rereadMs) {
      if (nowMs - this.#rereadMs > REREAD_MS_MAX) this.#rereads = 0
      const all = snapshot.services.size + snapshot.sliceByKey.size
      const distanceMs = (REREAD_MS + REREAD_OBJECT_MS * all) * 2 ** this.#rereads++
      this.#rereadMs = nowMs + Math.min(distanceMs, REREAD_MS_MAX)
      reread(objects)
    }
    // Also after a list: it may not have come.
    this.#lookWithin(this.#rereadMs - nowMs)
  }

  #report(): void {
    this.#options.refusals([...this.#ofSource, ...this.#orphans])
  }
}

/** Slices that are left out, and belong to no Service that could report them. */
function orphansIn({ services, sliceByKey }: Snapshot, { leftOut }: ObjectBudget): readonly LocatedRefusal[] {
  const orphans: LocatedRefusal[] = []
  for (const { kind, key } of leftOut.values()) {
    const slice = kind === 'EndpointSlice' ? sliceByKey.get(key) : undefined
    const service = slice === undefined ? undefined : services.get(slice.service)
    if (service !== undefined && service.type !== 'ExternalName') continue
    for (const refusal of slice?.refusals ?? [])
      if (orphans.length < ORPHANS_MAX) orphans.push({ place: 'endpointslices', refusal })
  }
  return orphans
}
