import type { Clock } from '../base/clock.ts'
import type { Ip } from '../base/ip.ts'
import type { PersistentMap } from '../base/persistent-map.ts'
import { finishInSlices, type Steps, slicingOf } from '../base/steps.ts'
import type { ApiEndpoint } from '../model/api-server.ts'
import { NOTHING_HELD, type ObjectBudget, withinBudget } from '../model/object-budget.ts'
import type { PartsHolder, PartsRoom } from '../model/parts-room.ts'
import {
  applyEvents,
  applyEventsInSteps,
  EMPTY_SNAPSHOT,
  type Snapshot,
  type SourceEvent,
} from '../model/snapshot.ts'
import type { Source, SourceHandlers, SourceStatus } from '../source/source.ts'
import { LeftOutWatch } from './left-out-watch.ts'
import type { Occasion } from './node-listeners.ts'

export interface IntakeOptions {
  readonly clock: Clock
  /** There is a new Snapshot, and everything that exists is in it. */
  readonly changed: (snapshot: Snapshot) => void
  /** What a source says besides its events. */
  readonly handlers: Omit<SourceHandlers, 'events' | 'synced'>
  /**
   * A Node that is deleted keeps its addresses, but load balancers are to keep away: without its addresses node ports
   * would close, for a kubelet that registers anew within seconds.
   */
  readonly keepsNode?: boolean
  /** Adds to a Snapshot what this machine knows, which may have changed; the same object when that is nothing new. */
  readonly completed?: (snapshot: Snapshot, occasion: Occasion) => Snapshot
  /** Limits all objects; undefined for no bound. */
  readonly partsRoom?: PartsRoom | undefined
}

/** One source from its start to its end. */
interface Run {
  readonly source: Source
  /** What it has told, until it has told everything; then its news go into the one Snapshot. */
  gathered: Snapshot
  /** What is held of all that it has told. */
  budget: ObjectBudget
  complete: boolean
}

/**
 * What the sources tell, as one Snapshot. Before the first source is complete, what is missing may only not have been
 * read yet: nothing is passed on. A source that takes the place of another starts from nothing and is compared with
 * what is known once it is complete, so that what went away in between goes, and the rest keeps its identity.
 */
export class Intake implements PartsHolder {
  readonly #options: IntakeOptions
  #snapshot = EMPTY_SNAPSHOT
  #run: Run | undefined
  #complete = false
  #ipsMissing = false
  /** Parts of the Snapshot of the source before, while another takes over. */
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

  /** The newest; whole only if `complete`. */
  get snapshot(): Snapshot {
    return this.#snapshot
  }

  /** Everything has been told once, the addresses of this machine included where they matter. */
  get complete(): boolean {
    return this.#complete && !this.#ipsMissing
  }

  /** Of the source, with this machine's addresses as a part of it; undefined before the first. */
  get status(): SourceStatus | undefined {
    const status = this.#run?.source.status
    if (status === undefined || !this.#ipsMissing) return status
    return { ...status, missing: [...status.missing, 'addresses of this machine'] }
  }

  /** Takes a source instead of the one before, which ends first. */
  async follow(source: Source): Promise<void> {
    await this.stop()
    if (!this.#complete) this.#snapshot = withoutObjects(this.#snapshot)
    else if (this.#run?.complete === true) this.#partsBefore = this.#run.budget.held
    const run: Run = { source, gathered: EMPTY_SNAPSHOT, budget: NOTHING_HELD, complete: false }
    this.#run = run
    await source.start({
      ...this.#options.handlers,
      refusals: list => this.#leftOut.refused(list),
      events: batch => this.#take(run, batch),
      synced: () => this.#synced(run),
    })
  }

  /** Without this machine's addresses NodePorts would be closed that the kernel serves already. */
  awaitIps(): void {
    this.#ipsMissing = this.#snapshot.localIps.length === 0
  }

  /** What is programmed does not depend on this machine's addresses (any more). */
  ignoreIps(): void {
    this.#ipsMissing = false
  }

  takeIps(value: readonly Ip[]): void {
    this.#ipsMissing = false
    this.#become(applyEvents(this.#snapshot, [{ kind: 'LocalIps', value }]))
  }

  /** Where the API server is reached. */
  takeApiEndpoints(value: readonly ApiEndpoint[]): void {
    this.#become(applyEvents(this.#snapshot, [{ kind: 'ApiEndpoints', value }]))
  }

  /** Passes the Snapshot on once more, as a new one: whoever reads it reads it differently now. */
  repeat(): void {
    this.#become({ ...this.#snapshot, number: this.#snapshot.number + 1 })
  }

  /** What this machine knows may have changed. */
  refresh(): void {
    const now = this.#completed(this.#snapshot, 'resync')
    if (now === this.#snapshot) return
    this.#snapshot = now
    this.#offer()
  }

  /** See Source.confirm; undefined where the source cannot. */
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
      // It was completed by another part of the source meanwhile, and without these.
    }
    const before = this.#snapshot
    const { snapshot: after, budget } = await finishInSlices(
      this.#applied(run, before, this.#keeping(batch)),
      slicing,
    )
    run.budget = budget
    // Addresses of this machine may have changed meanwhile: they are not of this batch, and cost nothing to do again.
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
    run.complete = true
    this.#partsBefore = 0
    const isFirst = !this.#complete
    this.#complete = true
    if (isFirst) this.#offer()
    else {
      const events = this.#keeping(differences(this.#snapshot, run.gathered))
      this.#become(applyEvents(this.#snapshot, events))
    }
    run.gathered = EMPTY_SNAPSHOT
    this.#leftOut.follow(this.#snapshot, run.budget)
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
    return this.#options.completed?.(snapshot, this.#complete ? occasion : 'start') ?? snapshot
  }

  #become(snapshot: Snapshot): void {
    this.#snapshot = this.#completed(snapshot, 'change')
    this.#offer()
  }

  #offer(): void {
    if (this.complete) this.#options.changed(this.#snapshot)
  }
}

/** What a source has told that did not get to its end: another may tell the rest, but not what has gone since. */
function withoutObjects({ number, localIps, apiEndpoints }: Snapshot): Snapshot {
  return { ...EMPTY_SNAPSHOT, number, localIps, apiEndpoints }
}

/** Events after which `before` says what `now` says; its objects stay wherever they say the same. */
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
