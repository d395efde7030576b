import type { Ip } from '../base/ip.ts'
import type { ApiEndpoint } from '../model/reserved.ts'
import {
  applyEvents,
  differences,
  EMPTY_SNAPSHOT,
  type NodeInfo,
  type Snapshot,
  type SnapshotEvent,
  type SourceEvent,
} from '../model/snapshot.ts'
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
  /** Counts each Snapshot after it was offered: the kernel waits for it, and not for those who count. */
  readonly counter?: { offered(snapshot: Snapshot): void }
  /** Gets the first Node, and each one that differs from the one before, ahead of its Snapshot. */
  readonly nodeChanged?: (node: NodeInfo | undefined) => void
  readonly handlers: Omit<SourceHandlers, 'events' | 'synced'>
  /**
   * Keep the addresses of a deleted Node, and make the Node ineligible for load balancers. Without its addresses node
   * ports would close, although a kubelet registers the Node again within seconds.
   */
  readonly keepsNode?: boolean
  /** Adds facts about this machine, which may have changed, to a Snapshot. Gives the same object if none changed. */
  readonly completed?: (snapshot: Snapshot, occasion: Occasion) => Snapshot
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
  /** `rereading`: its list lacked most of the saved objects, and is read once more. */
  stage: 'reading' | 'rereading' | 'complete'
  /** Its objects until it is complete, while saved or earlier ones serve. Later events go into the Snapshot. */
  gathered: Snapshot
}

/**
 * Merges the events of the sources into one Snapshot. It offers none before the first source is complete, because
 * missing objects may merely be unread. A source that replaces another starts empty. Once it is complete, its objects
 * are compared with the Snapshot: deleted objects are removed, and unchanged ones keep their identity.
 */
export class Intake {
  readonly #options: IntakeOptions
  #snapshot = EMPTY_SNAPSHOT
  #run: Run | undefined
  /** The origin of the objects in the Snapshot: `none`, it is incomplete; `saved`, a source has yet to confirm them. */
  #origin: 'none' | 'saved' | 'source' = 'none'
  /** Snapshots up to this number have objects of a saved state. */
  #savedTo = 0
  #ipsMissing = false
  #offered: Snapshot | undefined
  #reader: SnapshotReader | undefined
  #refused: readonly LocatedRefusal[] = []
  #letGo: () => void = () => undefined

  constructor(options: IntakeOptions) {
    this.#options = options
  }

  /** The newest Snapshot; whole only if `complete`. */
  get snapshot(): Snapshot {
    return this.#snapshot
  }

  get refused(): readonly LocatedRefusal[] {
    return this.#refused
  }

  /** The Snapshot has all objects, and the addresses of this machine are known if they matter. */
  get complete(): boolean {
    return this.#origin !== 'none' && !this.#ipsMissing
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

  async follow(source: Source): Promise<void> {
    const before = this.#run
    const run: Run = { source, stage: 'reading', gathered: EMPTY_SNAPSHOT }
    // The status is that of the new source from here on: the old one confirms nothing any more.
    this.#run = run
    await this.#end(before)
    const { number, localIps, apiEndpoints } = this.#snapshot
    // The next source would not report deletions since then.
    if (this.#origin === 'none') this.#snapshot = { ...EMPTY_SNAPSHOT, number, localIps, apiEndpoints }
    // A source without refusals reports none.
    if (this.#refused.length > 0) this.#refuse([])
    await source.start({
      ...this.#options.handlers,
      refusals: list => this.#refuse(list),
      events: batch => this.#take(run, batch),
      synced: () => this.#synced(run),
    })
  }

  #refuse(list: readonly LocatedRefusal[]): void {
    this.#refused = list
    this.#options.handlers.refusals(list)
  }

  /** Tests whether no source has confirmed the objects of a Snapshot that was offered. */
  isStale({ number }: Snapshot): boolean {
    return this.#origin === 'saved' || number <= this.#savedTo
  }

  /**
   * Offers saved objects if `allowed` agrees, until the source is complete; then its objects replace them in one change.
   * Gives 'complete' when the source is complete already, and 'early' while the addresses of this machine are unknown.
   */
  async standIn(
    saved: Snapshot,
    allowed: (snapshot: Snapshot) => Promise<boolean>,
  ): Promise<'stands' | 'denied' | 'early' | 'complete'> {
    // First, and after the wait: the caller asks again within milliseconds.
    if (this.#ipsMissing) return 'early'
    const isAllowed = this.#origin !== 'none' || (await allowed(this.#withFacts(saved)))
    const run = this.#run
    if (this.#origin !== 'none' || run === undefined) return 'complete'
    if (this.#ipsMissing) return 'early'
    if (!isAllowed) return 'denied'
    run.gathered = this.#snapshot
    this.#origin = 'saved'
    this.#become(this.#withFacts(saved))
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

  /** Takes events about silent endpoints: no object of the source changes. */
  takeSilent(events: readonly SnapshotEvent[]): void {
    this.#become(applyEvents(this.#snapshot, events))
  }

  /** Offers the Snapshot again, with a new number: its readers now resolve it differently. */
  repeat(): void {
    this.#become({ ...this.#snapshot, number: this.#snapshot.number + 1 })
  }

  refresh(): void {
    const now = this.#completed(this.#snapshot, 'resync')
    if (now === this.#snapshot) return
    this.#snapshot = now
    this.#offer()
  }

  confirm(): Promise<void> | undefined {
    return this.#run?.source.confirm?.()
  }

  stop(): Promise<void> {
    return this.#end(this.#run)
  }

  async #end(run: Run | undefined): Promise<void> {
    this.#letGo()
    await run?.source.stop()
  }

  async #take(run: Run, batch: readonly SourceEvent[]): Promise<void> {
    if (!isComplete(run) && this.#origin !== 'none') {
      run.gathered = applyEvents(run.gathered, batch)
      return
    }
    this.#become(applyEvents(this.#snapshot, this.#keeping(batch)))
    if (this.complete) await this.#untilPaced()
  }

  #untilPaced(): Promise<void> | undefined {
    const paced = this.#reader?.paced?.()
    if (paced === undefined) return undefined
    return new Promise(resolve => {
      this.#letGo = resolve
      void paced.then(resolve)
    })
  }

  #synced(run: Run): void {
    const isDoubtful =
      this.#origin === 'saved' && run.stage === 'reading' && isMostlyGone(this.#snapshot, run.gathered)
    const read = isDoubtful ? run.source.confirm?.() : undefined
    if (read !== undefined) {
      run.stage = 'rereading'
      const text =
        'the first list lacks most of the saved objects; kprobe reads it once more before it removes them'
      this.#options.handlers.problem({ kind: 'doubtful', location: 'saved state', text })
      void read.then(() => (this.#run === run ? this.#synced(run) : undefined))
      return
    }
    run.stage = 'complete'
    const origin = this.#origin
    this.#origin = 'source'
    if (origin === 'none') this.#offer()
    else {
      const events = this.#keeping(differences(this.#snapshot, run.gathered))
      const after = applyEvents(this.#snapshot, events)
      this.#become(origin === 'saved' ? this.#confirmed(after) : after)
    }
    run.gathered = EMPTY_SNAPSHOT
  }

  /** Gives the confirmed Snapshot a new number, even if no object changes: isStale() compares numbers. */
  #confirmed(snapshot: Snapshot): Snapshot {
    this.#savedTo = this.#snapshot.number
    this.#options.confirmed?.()
    return { ...snapshot, number: this.#savedTo + 1 }
  }

  #keeping(batch: readonly SourceEvent[]): readonly SourceEvent[] {
    return this.#options.keepsNode === true ? batch.map(event => this.#kept(event)) : batch
  }

  #kept(event: SourceEvent): SourceEvent {
    const { node } = this.#snapshot
    const isGone = event.kind === 'Node' && event.key === node?.name && event.value === undefined
    return isGone ? { ...event, value: { ...node, eligible: false, deleted: true } } : event
  }

  #completed(snapshot: Snapshot, occasion: Occasion): Snapshot {
    // Facts about this machine concern new Services; a failed lookup repeats itself.
    if (occasion === 'change' && snapshot.services === this.#snapshot.services) return snapshot
    return this.#options.completed?.(snapshot, this.#origin === 'none' ? 'start' : occasion) ?? snapshot
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
    this.#reader?.offer(now)
    this.#options.counter?.offered(now)
  }
}

function isComplete(run: Run): boolean {
  return run.stage === 'complete'
}
