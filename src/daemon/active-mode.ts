import { type Clock, finishInSlices, slicingOf, within } from '../base/clock.ts'
import type { Log } from '../base/log.ts'
import type { Config, ProxyMode } from '../config/config.ts'
import type { AnyTable } from '../kernel/nft/state.ts'
import type { Refusal } from '../model/fields.ts'
import type { FrontendTable } from '../model/frontend.ts'
import { cappedSnapshot } from '../model/memory-caps.ts'
import type { ResolveOptions } from '../model/node-context.ts'
import { type Resolved, resolve } from '../model/resolve.ts'
import type { Snapshot } from '../model/snapshot.ts'
import type { KernelSockets, ModeEvent, OpenPlane } from '../modes/mode.ts'
import { findMode } from '../modes/registry.ts'
import { resolveOptions } from '../modes/resolve-options.ts'
import { type Difference, differenceOf, dryRun, type Plan } from '../reconcile/dataplane.ts'
import type { ReconcilerEvent } from '../reconcile/pass.ts'
import { Reconciler, type ReconcilerStatus } from '../reconcile/reconciler.ts'
import type { TrafficCount } from '../telemetry/connection-metrics.ts'
import type { ReadRows } from '../telemetry/metric-set.ts'
import { servicesBytes } from './process-room.ts'
import { RemovalGuard } from './removal-guard.ts'

export interface ActiveModeOptions {
  readonly clock: Clock
  readonly log: Log
  readonly random: () => number
  readonly sockets: KernelSockets
  readonly report: (event: ReconcilerEvent) => void
  readonly tell: (event: ModeEvent) => void
  readonly planned: (plan: Plan<unknown>) => void
  /** Reads the source again, before most of the kernel state is removed. */
  readonly confirm?: () => Promise<void> | undefined
  /** Gets each resolved state at once, whatever the result of its commit. */
  readonly resolved?: ((resolved: Resolved) => void) | undefined
}

/** The known state of the kernel, and the Snapshot and configuration from which it was computed. */
export interface HeldRules {
  readonly config: Config
  readonly snapshot: Snapshot
  /** Our own tables; undefined in modes that write to tables of others. */
  readonly tables: readonly AnyTable[] | undefined
  /** The number of the reconciler's passes: a read of the kernel during which it grows mixes two moments. */
  readonly passes: number
}

/** One data plane and its reconciler, for one configuration. The next one adopts the kernel state. */
export interface ActiveMode {
  readonly mode: ProxyMode
  readonly status: ReconcilerStatus
  /** Maximum memory of all Services together; undefined for no bound. */
  readonly servicesBytes: number | undefined
  /** The kernel or the mode does not support a part of the wanted state. */
  readonly hasUnsupported: boolean
  /** Reads the kernel's counters of each endpoint, if the configuration enables them. */
  traffic(): Promise<readonly TrafficCount[]>
  metrics(): Promise<ReadRows>
  /** Computes the diff from the observed state to the newest wanted state. */
  pending(): Promise<Difference | undefined>
  /** Computes the diff from the observed state to that of a Snapshot which is not offered. */
  differenceTo(snapshot: Snapshot): Promise<Difference>
  /** The state is unknown while a pass runs, and after one that failed or left something over. */
  held(): HeldRules | undefined
  readonly isPassing: boolean
  offer(snapshot: Snapshot): void
  paced(): Promise<void> | undefined
  stop(): Promise<void>
}

/** Throws if the kernel cannot be reached, or lacks a feature that the mode needs. */
export function startMode(config: Config, options: ActiveModeOptions): ActiveMode {
  const { clock, sockets, tell } = options
  return findMode(config.proxyMode).open<ActiveMode>(
    { config, clock, sockets, tell },
    opened => new ActivePlane(config, options, opened),
  )
}

/** Maximum time that an unfinished pass may delay the exit. */
const DRAIN_MS = 3_000

class ActivePlane<State, P extends Plan<State>> implements ActiveMode {
  readonly mode: ProxyMode
  readonly servicesBytes: number | undefined
  readonly #config: Config
  readonly #options: ActiveModeOptions
  readonly #opened: OpenPlane<State, P>
  readonly #reconciler: Reconciler<State, P>
  readonly #resolving: ResolveOptions
  readonly #guard: RemovalGuard
  #unsupported = ''

  constructor(config: Config, options: ActiveModeOptions, opened: OpenPlane<State, P>) {
    const { clock, random } = options
    const guard = new RemovalGuard(options)
    this.#guard = guard
    this.mode = config.proxyMode
    this.#config = config
    this.#options = options
    this.#opened = opened
    const isReal = config.backend === 'netlink'
    if (isReal) this.#begin()
    this.servicesBytes = servicesBytes(options.sockets.room?.())
    this.#resolving = resolveOptions(config, this.servicesBytes)
    this.#reconciler = new Reconciler({
      plane: isReal ? opened.plane : this.#pretending(),
      resolve: (previous, snapshot) => resolve(this.#resolving, previous, snapshot),
      clock,
      random,
      minIntervalMs: config.minSyncPeriodMs,
      share: config.syncShare,
      resyncPeriodMs: config.syncPeriodMs,
      // Drift is to be repaired within 250 ms. Each check costs 0.06 to 0.09 ms, nearly all that an idle process uses.
      driftPollMs: isReal ? 150 : 0,
      resolved: options.resolved,
      report: event => this.#report(event),
      doubts: (held, wanted) => guard.doubts(opened.extent(held), opened.extent(wanted)),
    })
  }

  get status(): ReconcilerStatus {
    return this.#reconciler.status
  }

  get hasUnsupported(): boolean {
    return this.#unsupported !== '' || this.status.failedFamily !== undefined
  }

  async traffic(): Promise<readonly TrafficCount[]> {
    const { rendered } = this.#reconciler
    return rendered === undefined ? [] : ((await this.#opened.traffic?.(rendered)) ?? [])
  }

  async metrics(): Promise<ReadRows> {
    return (await this.#opened.metrics?.(this.#reconciler.rendered)) ?? {}
  }

  async pending(): Promise<Difference | undefined> {
    const { table } = this.#reconciler.status
    return table && (await this.#difference(table))
  }

  async differenceTo(snapshot: Snapshot): Promise<Difference> {
    const slicing = slicingOf(this.#options.clock)
    const { table } = await finishInSlices(resolve(this.#resolving, undefined, snapshot), slicing)
    return await this.#difference(table)
  }

  async #difference(table: FrontendTable): Promise<Difference> {
    const family = this.status.failedFamily?.family
    return await differenceOf(this.#opened.plane, table, { ...slicingOf(this.#options.clock), family })
  }

  held(): HeldRules | undefined {
    const held = this.#reconciler.held
    if (held === undefined) return undefined
    const { state, resolved, passes } = held
    return {
      config: this.#config,
      snapshot: cappedSnapshot(resolved.snapshot, resolved.memo.caps),
      tables: this.#opened.tables?.(state),
      passes,
    }
  }

  get isPassing(): boolean {
    return this.#reconciler.isPassing
  }

  offer(snapshot: Snapshot): void {
    this.#reconciler.offer(snapshot)
  }

  paced(): Promise<void> | undefined {
    return this.#reconciler.paced()
  }

  async stop(): Promise<void> {
    const { clock, log } = this.#options
    this.#guard.stop()
    const drained = await within(clock, DRAIN_MS, this.#reconciler.stop())
    if (!drained) log.warn('exiting with a commit in flight; the next start reads the kernel back')
    await within(clock, DRAIN_MS / 4, this.#opened.close())
  }

  #begin(): void {
    try {
      this.#opened.demand?.()
      this.#opened.start()
    } catch (error) {
      void this.#opened.close()
      throw error
    }
  }

  #pretending(): OpenPlane<State, P>['plane'] {
    const { log, planned } = this.#options
    const unreadable = (err: Error) =>
      log.warn({ err }, 'cannot read the kernel; the plan assumes an empty one')
    return dryRun(this.#opened.plane, { planned, unreadable })
  }

  #report(event: ReconcilerEvent): void {
    const { rendered } = this.#reconciler
    // A start that finds the wanted state in the kernel commits nothing.
    const isNews = event.kind === 'committed' || event.kind === 'synced'
    if (isNews && rendered !== undefined) this.#notice(this.#opened.unsupported(rendered))
    this.#options.report(event)
  }

  /** Logs what the kernel or the mode does not support, whenever it changes. */
  #notice(list: readonly Refusal[]): void {
    const said = list.length === 0 ? '' : JSON.stringify(list)
    if (said === this.#unsupported) return
    this.#unsupported = said
    for (const refusal of list)
      this.#options.log.warn(refusal, 'skipped: not supported by this kernel or proxy mode')
  }
}
