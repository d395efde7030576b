import type { Clock } from '../base/clock.ts'
import { Pacer } from '../base/pacer.ts'
import {
  fitting,
  type LeftOut,
  NOTHING_HELD,
  type ObjectBudget,
  type PartsRoom,
  RereadPace,
} from '../model/object-budget.ts'
import { EMPTY_SNAPSHOT, type Snapshot } from '../model/snapshot.ts'
import type { LocatedRefusal } from '../source/source.ts'

interface LeftOutOptions {
  readonly clock: Clock
  readonly partsRoom?: PartsRoom | undefined
  /** Gets the refusals of the source and those of objects without a Service, at each change. */
  readonly refusals: (list: readonly LocatedRefusal[]) => void
  /** Gets the objects that fit again. */
  readonly reread: (objects: readonly LeftOut[]) => void
}

/** Time from a change to the check of the objects that are left out. */
const CHECK_MS = 1_000
/** Refusals that are reported, each by its object. */
const ORPHANS_MAX = 1_000

/**
 * Follows the objects that are left out for want of memory: reports slices without a Service that could report them, and
 * requests objects again once they fit.
 */
export class LeftOutWatch {
  readonly #options: LeftOutOptions
  #snapshot = EMPTY_SNAPSHOT
  #budget = NOTHING_HELD
  #ofSource: readonly LocatedRefusal[] = []
  #orphans: readonly LocatedRefusal[] = []
  readonly #checks: Pacer
  readonly #pace: RereadPace

  constructor(options: LeftOutOptions) {
    this.#options = options
    this.#checks = new Pacer({ clock: options.clock, run: () => this.#check() })
    this.#pace = new RereadPace(options.clock)
  }

  /** What the source refuses now. */
  get ofSource(): readonly LocatedRefusal[] {
    return this.#ofSource
  }

  /** Takes what the source refuses now. */
  refused(list: readonly LocatedRefusal[]): void {
    this.#ofSource = list
    this.#report()
  }

  follow(snapshot: Snapshot, budget: ObjectBudget): void {
    this.#snapshot = snapshot
    this.#budget = budget
    if (budget.leftOut.size + this.#orphans.length > 0) this.#checks.wake(CHECK_MS)
    else this.#pace.reset()
  }

  /** Ends all calls until the next `follow` or `refused`. */
  stop(): void {
    this.#checks.cancel()
  }

  #check(): number | undefined {
    const orphans = orphansIn(this.#snapshot, this.#budget)
    const isSame =
      orphans.length === this.#orphans.length &&
      orphans.every(({ refusal }, at) => refusal === this.#orphans[at]?.refusal)
    this.#orphans = orphans
    if (!isSame) this.#report()
    return this.#reread()
  }

  #reread(): number | undefined {
    const { partsRoom, reread } = this.#options
    const partsMax = partsRoom?.partsMax ?? Number.POSITIVE_INFINITY
    const snapshot = this.#snapshot
    const objects = fitting({ partsMax, budget: this.#budget, snapshot })
    if (objects.length === 0) return undefined
    if (this.#pace.waitMs === 0) {
      this.#pace.began(snapshot.services.size + snapshot.sliceByKey.size)
      reread(objects)
    }
    // A list may fail, so that a check follows it, too.
    return this.#pace.waitMs
  }

  #report(): void {
    this.#options.refusals([...this.#ofSource, ...this.#orphans])
  }
}

/** Finds slices that are left out and have no Service that could report them. */
function orphansIn({ services, sliceByKey }: Snapshot, { leftOut }: ObjectBudget): readonly LocatedRefusal[] {
  const orphans: LocatedRefusal[] = []
  for (const { kind, key } of leftOut.values()) {
    const slice = kind === 'EndpointSlice' ? sliceByKey.get(key) : undefined
    const service = slice === undefined ? undefined : services.get(slice.service)
    if (service !== undefined && service.type !== 'ExternalName') continue
    for (const refusal of slice?.refusals ?? [])
      if (orphans.length < ORPHANS_MAX) orphans.push({ location: 'endpointslices', refusal })
  }
  return orphans
}
