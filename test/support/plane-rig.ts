import type { Clock } from '../../src/base/clock.ts'
import { SYNC_SHARE } from '../../src/base/clock.ts'
import type { Ip } from '../../src/base/ip.ts'
import { isRefusal } from '../../src/model/fields.ts'
import { parseObject, watchedIdentity } from '../../src/model/parse.ts'
import { resolve } from '../../src/model/resolve.ts'
import { applyEvents, EMPTY_SNAPSHOT, type Snapshot, type SourceEvent } from '../../src/model/snapshot.ts'
import type { Dataplane, Plan } from '../../src/reconcile/dataplane.ts'
import type { ReconcilerEvent } from '../../src/reconcile/pass.ts'
import { Reconciler } from '../../src/reconcile/reconciler.ts'
import { FakeClock } from './fake-clock.ts'
import { LIMIT_MS, Patience } from './patience.ts'
import { type PipelineConfig, resolveOptionsOf } from './pipeline.ts'

interface PlaneRigOptions<State, P extends Plan<State>> {
  readonly plane: Dataplane<State, P>
  readonly clock: Clock
  readonly config?: PipelineConfig
  readonly driftPollMs?: number
  readonly resyncPeriodMs?: number
  readonly localIps?: readonly Ip[]
}

/** Objects here mostly hold no Node, and node ports at its addresses would answer nowhere. */
const EVERYWHERE: PipelineConfig = { nodePortAddresses: [] }

const MIN_INTERVAL_MS = 20
const DRIFT_POLL_MS = 100
const RESYNC_PERIOD_MS = 30_000
const STEP_MS = 5

/** What the daemon makes of a source, put together in the same way over a plane of the test's choice. */
export class PlaneRig<State, P extends Plan<State>> {
  readonly events: ReconcilerEvent[] = []
  readonly reconciler: Reconciler<State, P>
  readonly clock: Clock
  #snapshot: Snapshot
  #offered = new Set<string>()

  constructor({ plane, clock, config = EVERYWHERE, localIps, ...periods }: PlaneRigOptions<State, P>) {
    this.clock = clock
    this.#snapshot =
      localIps === undefined
        ? EMPTY_SNAPSHOT
        : applyEvents(EMPTY_SNAPSHOT, [{ kind: 'LocalIps', value: localIps }])
    this.reconciler = new Reconciler({
      plane,
      resolve: (previous, snapshot) => resolve(resolveOptionsOf(config), previous, snapshot),
      clock,
      random: () => 0.5,
      minIntervalMs: MIN_INTERVAL_MS,
      share: SYNC_SHARE,
      resyncPeriodMs: periods.resyncPeriodMs ?? RESYNC_PERIOD_MS,
      driftPollMs: periods.driftPollMs ?? DRIFT_POLL_MS,
      report: event => this.events.push(event),
    })
  }

  /** The newest that was offered. */
  get snapshot(): Snapshot {
    return this.#snapshot
  }

  /** These objects and no others. */
  offer(objects: readonly object[]): void {
    const events: SourceEvent[] = []
    const names = new Set<string>()
    for (const object of objects) {
      const parsed = parseObject(object)
      const identity = watchedIdentity(object)
      if (parsed === undefined || isRefusal(parsed) || identity === undefined) continue
      names.add(`${identity.kind} ${identity.key}`)
      events.push(parsed)
    }
    for (const name of this.#offered) if (!names.has(name)) events.push(removal(name))
    this.#offered = names
    this.#snapshot = applyEvents(this.#snapshot, events)
    this.reconciler.offer(this.#snapshot)
  }

  /** Offers, and waits until the kernel is said to hold it. */
  async sync(objects: readonly object[], limitMs = LIMIT_MS): Promise<void> {
    this.offer(objects)
    await this.synced(limitMs)
  }

  async synced(limitMs = LIMIT_MS): Promise<void> {
    const isSynced = () => this.reconciler.status.syncedNumber === this.#snapshot.number
    await this.until(isSynced, limitMs)
  }

  /** Time goes by until it is so; throws with the last events when it does not become so. */
  async until(isSo: () => boolean, limitMs = LIMIT_MS): Promise<void> {
    const { clock } = this
    const simulated = { machine: { nowMs: () => clock.nowMs(), slowness: () => 1 } }
    const patience = new Patience(limitMs, clock instanceof FakeClock ? simulated : {})
    while (!isSo()) {
      if (patience.isOver) throw new Error(`${patience}: ${this.#lastWords()}`)
      await this.wait(STEP_MS)
    }
  }

  async wait(ms: number): Promise<void> {
    if (this.clock instanceof FakeClock) await this.clock.advance(ms)
    else await new Promise<void>(resolve => this.clock.after(ms, resolve))
  }

  kinds(): readonly ReconcilerEvent['kind'][] {
    return this.events.map(event => event.kind)
  }

  of<K extends ReconcilerEvent['kind']>(kind: K): readonly Extract<ReconcilerEvent, { kind: K }>[] {
    return this.events.filter((event): event is Extract<ReconcilerEvent, { kind: K }> => event.kind === kind)
  }

  /** Stops the reconciler, and then whatever the rig was built over. */
  async close(): Promise<void> {
    const stopped = Promise.all([this.reconciler.stop(), this.closeRest()])
    if (this.clock instanceof FakeClock) await this.clock.advance(1_000)
    await stopped
  }

  protected closeRest(): Promise<void> {
    return Promise.resolve()
  }

  #lastWords(): string {
    return this.events
      .slice(-5)
      .map(event => ('error' in event ? `${event.kind}: ${event.error.message}` : event.kind))
      .join('; ')
  }
}

function removal(name: string): SourceEvent {
  const [kind, key = ''] = name.split(' ')
  if (kind === 'Service' || kind === 'EndpointSlice') return { kind, key, value: undefined }
  throw new Error(`cannot remove ${name}`)
}
