import { type Clock, finishInSlices, Pacer, type Steps, slicingOf } from '../base/clock.ts'
import type { Ip } from '../base/ip.ts'
import {
  fitting,
  type LeftOut,
  NOTHING_HELD,
  type ObjectBudget,
  orphansIn,
  type PartsHolder,
  type PartsRoom,
  RereadPace,
  wholeWithinBudget,
  withinBudget,
} from '../model/object-budget.ts'
import type { ApiEndpoint } from '../model/reserved.ts'
import {
  applyEvents,
  applyEventsInSteps,
  differences,
  EMPTY_SNAPSHOT,
  type NodeInfo,
  type Snapshot,
  type SourceEvent,
} from '../model/snapshot.ts'
import type { Offers } from '../reconcile/reconciler.ts'
import {
  isMostlyGone,
  type LocatedRefusal,
  type Source,
  type SourceHandlers,
  type SourceStatus,
} from '../source/source.ts'

/** The reason to complete a Snapshot: the first objects of a source, a change of objects, or a full resync. */
export type Occasion = 'start' | 'change' | 'resync'

interface IntakeOptions {
  readonly clock: Clock
  /** Notes each Snapshot that is offered. */
  readonly offers?: Offers
  /** Gets the Node of the first of them, and each other one, before its Snapshot. */
  readonly nodeChanged?: (node: NodeInfo | undefined) => void
  /** Handlers for everything but the events of a source. */
  readonly handlers: Omit<SourceHandlers, 'events' | 'synced'>
  /**
   * Keep the addresses of a deleted Node, and make the Node ineligible for load balancers. Without its addresses node
   * ports would close, although a kubelet registers the Node again within seconds.
   */
  readonly keepsNode?: boolean
  /** Adds facts about this machine, which may have changed, to a Snapshot. Gives the same object if none changed. */
  readonly completed?: (snapshot: Snapshot, occasion: Occasion) => Snapshot
  /** Bounds the parts of all objects; undefined for no bound. */
  readonly partsRoom?: PartsRoom | undefined
  /** Called when the objects of the source replace saved ones, before their Snapshot. */
  readonly confirmed?: () => void
}

interface SnapshotReader {
  offer(snapshot: Snapshot): void
  /**
   * Resolves when another Snapshot can be programmed: until then, a source keeps further changes back. Undefined when it
   * need not.
   */
  paced?(): Promise<void> | undefined
}

interface Run {
  readonly source: Source
  /** Objects of this source, until it is complete; later events go into the common Snapshot. */
  gathered: Snapshot
  /** The parts that are held for this source. */
  budget: ObjectBudget
  complete: boolean
  /** The source has been read once more, because its list lacked most of what stood in for it. */
  isConfirmed?: true
}

/**
 * Merges the events of the sources into one Snapshot. It offers none before the first source is complete, because
 * missing objects may merely be unread. A source that replaces another starts empty. Once it is complete, its objects
 * are compared with the Snapshot: deleted objects are removed, and unchanged ones keep their identity.
 */
export class Intake implements PartsHolder {
  readonly #options: IntakeOptions
  #snapshot = EMPTY_SNAPSHOT
  #run: Run | undefined
  #complete = false
  /** Saved objects stand in for those of the source, which is not complete. */
  #isStale = false
  /** The last Snapshot with objects that no source has confirmed. */
  #staleTo = 0
  #ipsMissing = false
  #offered: Snapshot | undefined
  #reader: SnapshotReader | undefined
  /** Parts in the Snapshot of the previous source, while the next one reads. */
  #partsBefore = 0
  readonly #leftOut: LeftOutWatch
  /** Lets the source go on that keeps changes back. */
  #letGo: () => void = () => undefined

  constructor(options: IntakeOptions) {
    this.#options = options
    this.#leftOut = new LeftOutWatch({
      ...options,
      refusals: list => options.handlers.refusals(list),
      reread: objects => this.#run?.source.reread?.(objects),
    })
    options.partsRoom?.enter(this)
  }

  /** Parts that are held now. */
  get parts(): number {
    return this.#partsBefore + (this.#run?.budget.held ?? 0)
  }

  /** The newest Snapshot; whole only if `complete`. */
  get snapshot(): Snapshot {
    return this.#snapshot
  }

  /** Objects that the source refuses as a whole now. */
  get refused(): readonly LocatedRefusal[] {
    return this.#leftOut.ofSource
  }

  /** The source has delivered everything once, and the addresses of this machine are known if they matter. */
  get complete(): boolean {
    return this.#complete && !this.#ipsMissing
  }

  /** Status of the source, in which addresses of this machine may be missing; undefined before the first source. */
  get status(): SourceStatus | undefined {
    const status = this.#run?.source.status
    if (status === undefined || !this.#ipsMissing) return status
    return { ...status, missing: [...status.missing, 'addresses of this machine'] }
  }

  /** Offers each new Snapshot to this reader, from the first complete one on. */
  deliverTo(reader: SnapshotReader | undefined): void {
    this.#reader = reader
  }

  /** Stops the current source and follows this one. */
  async follow(source: Source): Promise<void> {
    const before = this.#run
    const run: Run = { source, gathered: EMPTY_SNAPSHOT, budget: NOTHING_HELD, complete: false }
    // The status is that of the new source from here on: the old one confirms nothing any more.
    this.#run = run
    await this.#end(before)
    const { number, localIps, apiEndpoints } = this.#snapshot
    // The next source would not report deletions since then.
    if (!this.#complete) this.#snapshot = { ...EMPTY_SNAPSHOT, number, localIps, apiEndpoints }
    else if (before?.complete === true) this.#partsBefore = before.budget.held
    await source.start({
      ...this.#options.handlers,
      refusals: list => this.#leftOut.refused(list),
      events: batch => this.#take(run, batch),
      synced: () => this.#synced(run),
    })
  }

  /** Tests whether no source has confirmed the objects of a Snapshot that was offered. */
  isStale({ number }: Snapshot): boolean {
    return this.#isStale || number <= this.#staleTo
  }

  /**
   * Offers saved objects if `allowed` agrees, until the source is complete; then its objects replace them in one change.
   * Gives 'complete' when the source is complete already, and 'early' while the addresses of this machine are unknown.
   */
  async standIn(
    saved: Snapshot,
    allowed: (snapshot: Snapshot) => Promise<boolean>,
  ): Promise<'stands' | 'denied' | 'early' | 'complete'> {
    const { clock, partsRoom } = this.#options
    // First, and after each wait: the caller asks again within milliseconds.
    if (this.#ipsMissing) return 'early'
    const fitted = wholeWithinBudget(saved, partsRoom?.partsMax)
    const { snapshot, budget } = await finishInSlices(fitted, slicingOf(clock))
    if (this.#ipsMissing) return 'early'
    const isAllowed = this.#complete || (await allowed(this.#withFacts(snapshot)))
    const run = this.#run
    if (this.#complete || run === undefined) return 'complete'
    if (this.#ipsMissing) return 'early'
    if (!isAllowed) return 'denied'
    run.gathered = this.#snapshot
    this.#partsBefore = budget.held
    this.#complete = true
    this.#isStale = true
    this.#become(this.#withFacts(snapshot))
    return 'stands'
  }

  /** Adds what this process knows of its machine, and of the API server as far as it has dialed it. */
  #withFacts(saved: Snapshot): Snapshot {
    const { localIps, apiEndpoints, number } = this.#snapshot
    const known = apiEndpoints.length > 0 ? apiEndpoints : saved.apiEndpoints
    return this.#completed({ ...saved, number: number + 1, localIps, apiEndpoints: known }, 'change')
  }

  /** Waits for this machine's addresses: without them, node ports would close that the kernel already serves. */
  awaitIps(): void {
    this.#ipsMissing = this.#snapshot.localIps.length === 0
  }

  /** Ends the wait: no rule depends on this machine's addresses. */
  ignoreIps(): void {
    this.#ipsMissing = false
  }

  takeIps(value: readonly Ip[]): void {
    this.#ipsMissing = false
    this.#become(applyEvents(this.#snapshot, [{ kind: 'LocalIps', value }]))
  }

  takeApiEndpoints(value: readonly ApiEndpoint[]): void {
    this.#become(applyEvents(this.#snapshot, [{ kind: 'ApiEndpoints', value }]))
  }

  /** Offers the Snapshot again, with a new number: its readers now resolve it differently. */
  repeat(): void {
    this.#become({ ...this.#snapshot, number: this.#snapshot.number + 1 })
  }

  /** Reads again the facts about this machine. */
  refresh(): void {
    const now = this.#completed(this.#snapshot, 'resync')
    if (now === this.#snapshot) return
    this.#snapshot = now
    this.#offer()
  }

  /** Calls Source.confirm; undefined if the source has none. */
  confirm(): Promise<void> | undefined {
    return this.#run?.source.confirm?.()
  }

  stop(): Promise<void> {
    // The room outlives it, and would keep all objects.
    this.#options.partsRoom?.leave(this)
    return this.#end(this.#run)
  }

  async #end(run: Run | undefined): Promise<void> {
    this.#letGo()
    await run?.source.stop()
    this.#leftOut.stop()
  }

  async #take(run: Run, batch: readonly SourceEvent[]): Promise<void> {
    const slicing = slicingOf(this.#options.clock)
    if (!run.complete && this.#complete) {
      const gathered = await finishInSlices(this.#applied(run, run.gathered, batch), slicing)
      if (!run.complete) {
        run.gathered = gathered.snapshot
        run.budget = gathered.budget
        return
      }
      // Another part of the source has completed it meanwhile, without this batch.
    }
    const before = this.#snapshot
    const wasComplete = this.#complete
    const { snapshot: after, budget } = await finishInSlices(
      this.#applied(run, before, this.#keeping(batch)),
      slicing,
    )
    run.budget = budget
    // This machine's addresses may have changed meanwhile, and are not part of the batch.
    const { localIps, apiEndpoints, listeners, number } = this.#snapshot
    // Saved objects stand in meanwhile.
    if (this.#isStale && !wasComplete) run.gathered = after
    else if (this.#snapshot === before) this.#become(after)
    else this.#become({ ...after, number: number + 1, localIps, apiEndpoints, listeners })
    this.#leftOut.follow(this.#snapshot, budget)
    if (this.complete) await this.#untilPaced()
  }

  /** Ends early when the source is to stop. */
  #untilPaced(): Promise<void> | undefined {
    const paced = this.#reader?.paced?.()
    if (paced === undefined) return undefined
    return new Promise(resolve => {
      this.#letGo = resolve
      void paced.then(resolve)
    })
  }

  *#applied(
    { budget }: Run,
    before: Snapshot,
    batch: readonly SourceEvent[],
  ): Steps<{ readonly snapshot: Snapshot; readonly budget: ObjectBudget }> {
    const { partsRoom } = this.#options
    const after = yield* applyEventsInSteps(before, batch)
    if (partsRoom === undefined) return { snapshot: after, budget }
    return yield* withinBudget({ partsMax: partsRoom.partsMax, budget, before, after })
  }

  #synced(run: Run): void {
    const isDoubtful = this.#isStale && run.isConfirmed !== true && isMostlyGone(this.#snapshot, run.gathered)
    const read = isDoubtful ? run.source.confirm?.() : undefined
    if (read !== undefined) {
      run.isConfirmed = true
      const text = 'the first list lacks most of the saved objects; kprobe reads it once more before they go'
      this.#options.handlers.problem({ kind: 'doubtful', location: 'saved state', text })
      void read.then(() => (this.#run === run ? this.#synced(run) : undefined))
      return
    }
    run.complete = true
    this.#partsBefore = 0
    const isFirst = !this.#complete
    this.#complete = true
    if (isFirst) this.#offer()
    else {
      const events = this.#keeping(differences(this.#snapshot, run.gathered))
      const after = applyEvents(this.#snapshot, events)
      this.#become(this.#isStale ? this.#confirmed(after) : after)
    }
    run.gathered = EMPTY_SNAPSHOT
    this.#leftOut.follow(this.#snapshot, run.budget)
  }

  /** The Snapshot of a source that confirms saved objects: with a number of its own even if nothing changes. */
  #confirmed(snapshot: Snapshot): Snapshot {
    this.#isStale = false
    this.#staleTo = this.#snapshot.number
    this.#options.confirmed?.()
    return { ...snapshot, number: this.#staleTo + 1 }
  }

  #keeping(batch: readonly SourceEvent[]): readonly SourceEvent[] {
    const { node } = this.#snapshot
    if (this.#options.keepsNode !== true || node === undefined) return batch
    return batch.map(event => {
      const isGone = event.kind === 'Node' && event.key === node.name && event.value === undefined
      return isGone ? { ...event, value: { ...node, eligible: false, deleted: true } } : event
    })
  }

  #completed(snapshot: Snapshot, occasion: Occasion): Snapshot {
    // Facts about this machine concern new Services; a failed lookup repeats itself.
    if (occasion === 'change' && snapshot.services === this.#snapshot.services) return snapshot
    return this.#options.completed?.(snapshot, this.#complete ? occasion : 'start') ?? snapshot
  }

  #become(snapshot: Snapshot): void {
    this.#snapshot = this.#completed(snapshot, 'change')
    this.#offer()
  }

  #offer(): void {
    if (!this.complete) return
    const before = this.#offered
    const now = this.#snapshot
    this.#offered = now
    if (before === undefined || before.node !== now.node) this.#options.nodeChanged?.(now.node)
    this.#options.offers?.add(now)
    this.#reader?.offer(now)
  }
}

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

/**
 * Follows the objects that are left out for want of memory: reports slices without a Service that could report them, and
 * requests objects again once they fit.
 */
class LeftOutWatch {
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
