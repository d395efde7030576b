import { type Clock, within } from '../base/clock.ts'
import type { Log } from '../base/log.ts'
import { isMostGone } from '../base/most-gone.ts'
import { finishInSlices, slicingOf } from '../base/steps.ts'
import type { Config, ProxyMode } from '../config/config.ts'
import { resolveOptions } from '../config/daemon-config.ts'
import type { Refusal } from '../model/fields.ts'
import type { ResolveOptions } from '../model/node-context.ts'
import { type Resolved, resolve } from '../model/resolve.ts'
import type { Snapshot } from '../model/snapshot.ts'
import type { KernelSockets, ModeEvent, OpenPlane } from '../modes/mode.ts'
import { findMode } from '../modes/registry.ts'
import type { Plan } from '../reconcile/dataplane.ts'
import { type Difference, differenceOf, dryRun } from '../reconcile/difference.ts'
import type { ReconcilerEvent } from '../reconcile/pass.ts'
import { Reconciler, type ReconcilerStatus } from '../reconcile/reconciler.ts'
import type { TrafficCount } from '../telemetry/connection-totals.ts'
import type { ModeMetric } from '../telemetry/mode-metrics.ts'
import { servicesBytes } from './process-room.ts'

export interface ActiveModeOptions {
  readonly clock: Clock
  readonly log: Log
  /** Uniform in [0, 1). */
  readonly random: () => number
  readonly sockets: KernelSockets
  readonly report: (event: ReconcilerEvent) => void
  /** Gets the events of the mode between commits. */
  readonly tell: (event: ModeEvent) => void
  /** Gets each plan that --backend=dry-run does not commit. */
  readonly planned: (plan: Plan<unknown>) => void
  /** Gets the complete list of what the kernel or the mode does not support, whenever it changes. */
  readonly unsupported: (refusals: readonly Refusal[]) => void
  /** Reads the source again, before most of the kernel state is removed. */
  readonly confirm?: () => Promise<void> | undefined
  /** Gets each resolved state at once, whatever the result of its commit. */
  readonly resolved?: (resolved: Resolved) => void
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
  /** Reads the metrics of the mode. Rejects if the kernel cannot be queried. */
  metrics(): Promise<readonly ModeMetric[]>
  /** Computes the diff from the observed state to the newest wanted state. */
  pending(): Promise<Difference | undefined>
  /** Computes the diff from the observed state to that of a Snapshot which is not offered. */
  differenceTo(snapshot: Snapshot): Promise<Difference>
  offer(snapshot: Snapshot): void
  /** Stops without a change of the kernel. */
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

/** Interval of the reads of the kernel's generation: drift is detected in half of the 250 ms allowed. */
const DRIFT_POLL_MS = 100
/** Maximum time that an unfinished pass may delay the exit. */
const DRAIN_MS = 3_000

/** Maximum time of the second read; after it, the first one counts. */
const CONFIRM_MS = 60_000
const DOUBTED =
  'the source has less than half of what the kernel serves; kprobe reads it once more before it removes the rest'

class ActivePlane<State, P extends Plan<State>> implements ActiveMode {
  readonly mode: ProxyMode
  readonly servicesBytes: number | undefined
  readonly #options: ActiveModeOptions
  readonly #opened: OpenPlane<State, P>
  readonly #reconciler: Reconciler<State, P>
  readonly #resolving: ResolveOptions
  #unsupported = ''
  #isConfirmed = false

  constructor(config: Config, options: ActiveModeOptions, opened: OpenPlane<State, P>) {
    const { clock, random } = options
    this.mode = config.proxyMode
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
      healPeriodMs: config.syncPeriodMs,
      driftPollMs: isReal ? DRIFT_POLL_MS : 0,
      resolved: options.resolved,
      report: event => this.#report(event),
      doubts: (held, wanted) => this.#doubts(held, wanted),
    })
  }

  get status(): ReconcilerStatus {
    return this.#reconciler.status
  }

  get hasUnsupported(): boolean {
    return this.#unsupported !== ''
  }

  async traffic(): Promise<readonly TrafficCount[]> {
    const { rendered } = this.#reconciler
    return rendered === undefined ? [] : await this.#opened.traffic(rendered)
  }

  async metrics(): Promise<readonly ModeMetric[]> {
    return (await this.#opened.metrics?.(this.#reconciler.rendered)) ?? []
  }

  async pending(): Promise<Difference | undefined> {
    const { table } = this.#reconciler.status
    if (table === undefined) return undefined
    return await differenceOf(this.#opened.plane, table, slicingOf(this.#options.clock))
  }

  async differenceTo(snapshot: Snapshot): Promise<Difference> {
    const slicing = slicingOf(this.#options.clock)
    const { table } = await finishInSlices(resolve(this.#resolving, undefined, snapshot), slicing)
    return await differenceOf(this.#opened.plane, table, slicing)
  }

  offer(snapshot: Snapshot): void {
    this.#reconciler.offer(snapshot)
  }

  async stop(): Promise<void> {
    const { clock, log } = this.#options
    const drained = await within(clock, DRAIN_MS, this.#reconciler.stop())
    if (!drained) log.warn('exiting with a commit in flight; the next start reads the kernel back')
    await within(clock, DRAIN_MS / 4, this.#opened.close())
  }

  /**
   * Reads the source again if its list lacks most of the kernel state. After a restart, only the kernel remembers
   * earlier objects.
   */
  async #doubts(held: State, wanted: State): Promise<boolean> {
    if (this.#isConfirmed) return false
    this.#isConfirmed = true
    const { clock, log, confirm } = this.#options
    const [before, after] = [this.#opened.extent(held), this.#opened.extent(wanted)]
    const isDoubtful =
      isMostGone(before.frontends, before.frontends - after.frontends) ||
      isMostGone(before.endpoints, before.endpoints - after.endpoints)
    const read = isDoubtful ? confirm?.() : undefined
    if (read === undefined) return false
    log.warn({ kernel: before, source: after }, DOUBTED)
    await within(clock, CONFIRM_MS, read)
    return true
  }

  #begin(): void {
    try {
      this.#opened.demand()
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
    if (event.kind === 'committed' && rendered !== undefined) this.#notice(this.#opened.unsupported(rendered))
    this.#options.report(event)
  }

  /** Reports what the data plane refuses, whenever it changes. */
  #notice(list: readonly Refusal[]): void {
    const said = list.length === 0 ? '' : JSON.stringify(list)
    if (said === this.#unsupported) return
    this.#unsupported = said
    this.#options.unsupported(list)
  }
}
