import type { Clock } from '../base/clock.ts'
import type { Ip } from '../base/ip.ts'
import { isMostGone } from '../base/most-gone.ts'
import type { PersistentMap } from '../base/persistent-map.ts'
import { finishInSlices, type Steps, slicingOf } from '../base/steps.ts'
import {
  NOTHING_HELD,
  type ObjectBudget,
  type PartsHolder,
  type PartsRoom,
  withinBudget,
} from '../model/object-budget.ts'
import type { ApiEndpoint } from '../model/reserved.ts'
import {
  applyEvents,
  applyEventsInSteps,
  EMPTY_SNAPSHOT,
  type NodeInfo,
  type Snapshot,
  type SourceEvent,
} from '../model/snapshot.ts'
import type { LocatedRefusal, Source, SourceHandlers, SourceStatus } from '../source/source.ts'
import { LeftOutWatch } from './left-out-watch.ts'
import type { Occasion } from './node-listeners.ts'

interface IntakeOptions {
  readonly clock: Clock
  /** Gets each new Snapshot, from the first complete one on. */
  readonly changed: (snapshot: Snapshot) => void
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
  /** Called when the objects of the source replace those that stood in for them, before their Snapshot. */
  readonly confirmed?: () => void
}

/** The run of one source. */
interface Run {
  readonly source: Source
  /** Objects of this source, until it is complete; later events go into the common Snapshot. */
  gathered: Snapshot
  /** The parts that are held for this source. */
  budget: ObjectBudget
  complete: boolean
  /** The source has been read once more, because its list lacked most of what stood in for it. */
  isConfirmed: boolean
}

const MOST_GONE =
  'the first list has less than half of the saved Services or EndpointSlices; kprobe reads it once more before it removes the rest'

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
  /** Parts in the Snapshot of the previous source, while the next one reads. */
  #partsBefore = 0
  readonly #leftOut: LeftOutWatch

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

  /** Stops the current source and follows this one. */
  async follow(source: Source): Promise<void> {
    await this.stop()
    if (!this.#complete) this.#snapshot = withoutObjects(this.#snapshot)
    else if (this.#run?.complete === true) this.#partsBefore = this.#run.budget.held
    const run: Run = {
      source,
      gathered: EMPTY_SNAPSHOT,
      budget: NOTHING_HELD,
      complete: false,
      isConfirmed: false,
    }
    this.#run = run
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
    const partsMax = partsRoom?.partsMax ?? Number.POSITIVE_INFINITY
    const input = { partsMax, budget: NOTHING_HELD, before: EMPTY_SNAPSHOT, after: saved }
    const { snapshot, budget } = await finishInSlices(withinBudget(input), slicingOf(clock))
    if (this.#ipsMissing) return 'early'
    const isAllowed = this.#complete || (await allowed(this.#withFacts(snapshot)))
    const run = this.#run
    if (this.#complete || run === undefined) return 'complete'
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

  /** Takes the endpoints of the API server. */
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

  async stop(): Promise<void> {
    await this.#run?.source.stop()
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
    if (this.#complete && !wasComplete && !run.complete) {
      // Saved objects stand in meanwhile.
      run.gathered = after
      return
    }
    // This machine's addresses may have changed meanwhile, and are not part of the batch.
    const { localIps, apiEndpoints, listeners, number } = this.#snapshot
    if (this.#snapshot === before) this.#become(after)
    else this.#become({ ...after, number: number + 1, localIps, apiEndpoints, listeners })
    this.#leftOut.follow(this.#snapshot, budget)
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
    const read = this.#doubts(run) ? run.source.confirm?.() : undefined
    if (read !== undefined) {
      run.isConfirmed = true
      this.#options.handlers.problem({ kind: 'doubtful', location: 'saved state', text: MOST_GONE })
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
      this.#replace(applyEvents(this.#snapshot, events))
    }
    run.gathered = EMPTY_SNAPSHOT
    this.#leftOut.follow(this.#snapshot, run.budget)
  }

  /** After a reboot, only the saved objects tell of earlier ones; the reconciler compares the kernel in the same way. */
  #doubts({ isConfirmed, gathered }: Run): boolean {
    if (!this.#isStale || isConfirmed) return false
    const { services, sliceByKey } = this.#snapshot
    return (
      isMostGone(services.size, absent(services, gathered.services).length) ||
      isMostGone(sliceByKey.size, absent(sliceByKey, gathered.sliceByKey).length)
    )
  }

  /** Takes the Snapshot of a complete source. It has a number of its own even where it confirms saved objects. */
  #replace(snapshot: Snapshot): void {
    if (!this.#isStale) {
      this.#become(snapshot)
      return
    }
    this.#isStale = false
    this.#staleTo = this.#snapshot.number
    this.#options.confirmed?.()
    this.#become({ ...snapshot, number: this.#staleTo + 1 })
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
    this.#options.changed(now)
  }
}

/** Drops the objects of an incomplete source. The next source would not report deletions since then. */
function withoutObjects({ number, localIps, apiEndpoints }: Snapshot): Snapshot {
  return { ...EMPTY_SNAPSHOT, number, localIps, apiEndpoints }
}

/** Computes the events that turn `before` into `now`; equal objects keep their identity. */
function differences(before: Snapshot, now: Snapshot): readonly SourceEvent[] {
  const events: SourceEvent[] = []
  for (const key of absent(before.services, now.services))
    events.push({ kind: 'Service', key, value: undefined })
  for (const key of absent(before.sliceByKey, now.sliceByKey))
    events.push({ kind: 'EndpointSlice', key, value: undefined })
  for (const key of absent(before.serviceCidrs, now.serviceCidrs))
    events.push({ kind: 'ServiceCIDR', key, value: undefined })
  if (before.node !== undefined && now.node === undefined)
    events.push({ kind: 'Node', key: before.node.name, value: undefined })
  for (const [key, value] of now.services.entries()) events.push({ kind: 'Service', key, value })
  for (const [key, value] of now.sliceByKey.entries()) events.push({ kind: 'EndpointSlice', key, value })
  for (const [key, value] of now.serviceCidrs.entries()) events.push({ kind: 'ServiceCIDR', key, value })
  if (now.node !== undefined) events.push({ kind: 'Node', key: now.node.name, value: now.node })
  return events
}

function absent<V>(before: PersistentMap<V>, now: PersistentMap<V>): readonly string[] {
  return before.keys().filter(key => !now.has(key))
}
