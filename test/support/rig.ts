import { type Clock, systemClock } from '../../src/base/clock.ts'
import type { NftablesPlan } from '../../src/dataplane/nftables/plan.ts'
import { createNftablesPlane } from '../../src/dataplane/nftables/plane.ts'
import type { NftablesState } from '../../src/dataplane/nftables/state.ts'
import { watchWriters } from '../../src/dataplane/nftables/writers.ts'
import { createNftClient, type NftClient } from '../../src/kernel/nft/client.ts'
import { parseObject, watchedIdentity } from '../../src/model/parse.ts'
import { isRefusal } from '../../src/model/refusal.ts'
import { resolve } from '../../src/model/resolve.ts'
import { applyEvents, EMPTY_SNAPSHOT, type Snapshot, type SourceEvent } from '../../src/model/snapshot.ts'
import type { Transport } from '../../src/netlink/transport.ts'
import type { ReconcilerEvent } from '../../src/reconcile/events.ts'
import { Reconciler } from '../../src/reconcile/reconciler.ts'
import { FakeClock } from './fake-clock.ts'
import { nftablesOptionsOf, type PipelineConfig, resolveOptionsOf } from './pipeline.ts'

export interface RigOptions {
  readonly transport: Transport
  readonly clock?: Clock
  readonly config?: PipelineConfig
  readonly driftPollMs?: number
  readonly healPeriodMs?: number
  /** A socket that listens; without it nobody is named. */
  readonly openListener?: () => Transport
}

const MIN_INTERVAL_MS = 20
const DRIFT_POLL_MS = 100
const HEAL_PERIOD_MS = 30_000
const STEP_MS = 5

/** What the daemon makes of a source, put together in the same way over a socket of the test's choice. */
export class Rig {
  readonly events: ReconcilerEvent[] = []
  readonly client: NftClient
  readonly reconciler: Reconciler<NftablesState, NftablesPlan>
  readonly #clock: Clock
  #snapshot: Snapshot = EMPTY_SNAPSHOT
  #offered = new Set<string>()

  constructor(options: RigOptions) {
    const { transport, clock = systemClock, config = {}, openListener } = options
    this.#clock = clock
    this.client = createNftClient({ transport, clock })
    const nftables = nftablesOptionsOf(config)
    const plane = createNftablesPlane({
      client: this.client,
      options: nftables,
      ...(openListener === undefined
        ? {}
        : {
            watchWriters: report =>
              watchWriters(
                { openTransport: openListener, own: transport.portId, table: nftables.tableName },
                report,
              ),
          }),
      slicing: { sliceMs: 10, nowMs: () => clock.nowMs(), breathe: () => clock.breathe() },
    })
    this.reconciler = new Reconciler({
      plane,
      resolve: (previous, snapshot) => resolve(resolveOptionsOf(config), previous, snapshot),
      clock,
      random: () => 0.5,
      minIntervalMs: MIN_INTERVAL_MS,
      healPeriodMs: options.healPeriodMs ?? HEAL_PERIOD_MS,
      driftPollMs: options.driftPollMs ?? DRIFT_POLL_MS,
      report: event => this.events.push(event),
    })
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
  async sync(objects: readonly object[], timeoutMs = 10_000): Promise<void> {
    this.offer(objects)
    await this.synced(timeoutMs)
  }

  async synced(timeoutMs = 10_000): Promise<void> {
    const isSynced = () => this.reconciler.status.syncedNumber === this.#snapshot.number
    await this.until(isSynced, timeoutMs)
  }

  /** Time goes by until it is so; throws with the last events when it does not become so. */
  async until(isSo: () => boolean, timeoutMs = 10_000): Promise<void> {
    const endMs = this.#clock.nowMs() + timeoutMs
    while (!isSo()) {
      if (this.#clock.nowMs() > endMs) throw new Error(`not within ${timeoutMs} ms: ${this.#lastWords()}`)
      await this.wait(STEP_MS)
    }
  }

  async wait(ms: number): Promise<void> {
    if (this.#clock instanceof FakeClock) await this.#clock.advance(ms)
    else await new Promise<void>(resolve => this.#clock.after(ms, resolve))
  }

  kinds(): readonly ReconcilerEvent['kind'][] {
    return this.events.map(event => event.kind)
  }

  of<K extends ReconcilerEvent['kind']>(kind: K): readonly Extract<ReconcilerEvent, { kind: K }>[] {
    return this.events.filter((event): event is Extract<ReconcilerEvent, { kind: K }> => event.kind === kind)
  }

  async close(): Promise<void> {
    const stopped = Promise.all([this.reconciler.stop(), this.client.close()])
    if (this.#clock instanceof FakeClock) await this.#clock.advance(1_000)
    await stopped
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
