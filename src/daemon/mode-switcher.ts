import { type Clock, finishInSlices, slicingOf, within } from '../base/clock.ts'
import type { Log } from '../base/log.ts'
import type { Config, ProxyMode } from '../config/config.ts'
import type { AnyTable } from '../kernel/nft/state.ts'
import type { Refusal } from '../model/fields.ts'
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
import type { ModeMetric } from '../telemetry/metric-set.ts'
import { servicesBytes } from './process-room.ts'
import { RemovalGuard } from './removal-guard.ts'
import { leftoversMetric, modesOf, Retirement } from './retirement.ts'

export interface ActiveModeOptions {
  readonly clock: Clock
  readonly log: Log
  readonly random: () => number
  readonly sockets: KernelSockets
  readonly report: (event: ReconcilerEvent) => void
  readonly tell: (event: ModeEvent) => void
  /** Gets each plan that --backend=dry-run does not commit. */
  readonly planned: (plan: Plan<unknown>) => void
  /** Gets the complete list of what the kernel or the mode does not support, whenever it changes. */
  readonly unsupported: (refusals: readonly Refusal[]) => void
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
  /** Reads the metrics of the mode. Rejects if the kernel cannot be queried. */
  metrics(): Promise<readonly ModeMetric[]>
  /** Computes the diff from the observed state to the newest wanted state. */
  pending(): Promise<Difference | undefined>
  /** Computes the diff from the observed state to that of a Snapshot which is not offered. */
  differenceTo(snapshot: Snapshot): Promise<Difference>
  /** The state is unknown while a pass runs, and after one that failed or left something over. */
  held(): HeldRules | undefined
  readonly isPassing: boolean
  offer(snapshot: Snapshot): void
  paced(): Promise<void> | undefined
  /** Stops without a change of the kernel. */
  stop(): Promise<void>
}

/** Throws if the kernel cannot be reached, or lacks a feature that the mode needs. */
function startMode(config: Config, options: ActiveModeOptions): ActiveMode {
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

class ActivePlane<State, P extends Plan<State>> implements ActiveMode {
  readonly mode: ProxyMode
  readonly servicesBytes: number | undefined
  readonly #config: Config
  readonly #options: ActiveModeOptions
  readonly #opened: OpenPlane<State, P>
  readonly #reconciler: Reconciler<State, P>
  readonly #resolving: ResolveOptions
  #unsupported = ''

  constructor(config: Config, options: ActiveModeOptions, opened: OpenPlane<State, P>) {
    const { clock, random } = options
    const guard = new RemovalGuard(options)
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
      healPeriodMs: config.syncPeriodMs,
      driftPollMs: isReal ? DRIFT_POLL_MS : 0,
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

  async metrics(): Promise<readonly ModeMetric[]> {
    return (await this.#opened.metrics?.(this.#reconciler.rendered)) ?? []
  }

  async pending(): Promise<Difference | undefined> {
    const { table, failedFamily } = this.#reconciler.status
    if (table === undefined) return undefined
    const options = { ...slicingOf(this.#options.clock), family: failedFamily?.family }
    return await differenceOf(this.#opened.plane, table, options)
  }

  async differenceTo(snapshot: Snapshot): Promise<Difference> {
    const slicing = slicingOf(this.#options.clock)
    const { table } = await finishInSlices(resolve(this.#resolving, undefined, snapshot), slicing)
    return await differenceOf(this.#opened.plane, table, slicing)
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

  /** Reports what the data plane refuses, whenever it changes. */
  #notice(list: readonly Refusal[]): void {
    const said = list.length === 0 ? '' : JSON.stringify(list)
    if (said === this.#unsupported) return
    this.#unsupported = said
    this.#options.unsupported(list)
  }
}

export interface ModeSwitcherOptions extends ActiveModeOptions {
  readonly start?: typeof startMode
}

/**
 * Runs the active mode, and switches between modes. A data plane of the same mode adopts the kernel state of the
 * previous one. A data plane of another mode first converges beside the active one; only then does the old mode retire
 * (docs/decisions/0015). At its start, a daemon retires leftovers of other modes in the same way.
 */
export class ModeSwitcher {
  readonly #options: ModeSwitcherOptions
  /** The last configuration of each mode, which identifies the objects of that mode. */
  readonly #configs = new Map<ProxyMode, Config>()
  #current: ActiveMode | undefined
  /** The next mode, which has not converged yet. */
  #next: ActiveMode | undefined
  /** The last resolved state of the next mode: the active mode may be stuck in its pass and never report its own. */
  #resolvedByNext: Resolved | undefined
  #newest: Snapshot | undefined
  /** The end of the previous mode. Until then, its last pass could restore what retires. */
  #leaving: Promise<void> | undefined
  #retirement: Retirement | undefined

  /** Throws if the kernel cannot be reached. */
  constructor(config: Config, options: ModeSwitcherOptions) {
    this.#options = options
    this.#current = this.#begin(config)
  }

  get current(): ActiveMode | undefined {
    return this.#current
  }

  get leftovers(): Retirement['leftovers'] | undefined {
    return this.#retirement?.leftovers
  }

  offer(snapshot: Snapshot): void {
    this.#newest = snapshot
    this.#current?.offer(snapshot)
    this.#next?.offer(snapshot)
  }

  paced(): Promise<void> | undefined {
    return this.#current?.paced()
  }

  /**
   * Takes a new configuration; the caller then offers the Snapshot again. Throws if it cannot be applied, and changes
   * nothing then.
   */
  async change(config: Config): Promise<void> {
    const serving = this.#current && this.#configs.get(this.#current.mode)
    const clash = serving && whyNotBeside(serving, config)
    if (clash !== undefined) throw new Error(clash)
    await this.#retirement?.end(config.proxyMode)
    const begun = this.#beginOrGoOn(config)
    await this.#next?.stop()
    this.#next = undefined
    this.#resolvedByNext = undefined
    if (this.#current?.mode === begun.mode) {
      const before = this.#current
      this.#current = begun
      await before.stop()
    } else this.#next = begun
  }

  async metrics(): Promise<readonly ModeMetric[]> {
    const serving = this.#current
    const common = [leftoversMetric(this.leftovers)]
    try {
      return [...((await serving?.metrics()) ?? []), ...common]
    } catch (err) {
      const what = `${serving?.mode} rules or their counters`
      this.#options.log.warn({ err }, `cannot read ${what}; their metrics are missing`)
      return common
    }
  }

  /** Resolves when the other modes are removed from the kernel, or cannot be. */
  async retired(): Promise<void> {
    await this.#retirement?.done
  }

  /** Stops without a change of the kernel. */
  async stop(): Promise<void> {
    await this.#retirement?.end()
    await this.#next?.stop()
    await this.#leaving
    await this.#current?.stop()
  }

  /** Begins a mode. If it cannot be opened, an interrupted retirement goes on. */
  #beginOrGoOn(config: Config): ActiveMode {
    try {
      return this.#begin(config)
    } catch (thrown) {
      const serving = this.#current && this.#configs.get(this.#current.mode)
      if (serving?.backend === 'netlink') this.#retireOthers(serving)
      throw thrown
    }
  }

  #begin(config: Config): ActiveMode {
    let isFirst = true
    const { start = startMode } = this.#options
    const begun: ActiveMode = start(config, {
      ...this.#options,
      // The next mode resolves the same Snapshots, and may be the only one that does.
      resolved: its => {
        if (this.#current === undefined || this.#current === begun) this.#options.resolved?.(its)
        else if (this.#next === begun) this.#resolvedByNext = its
      },
      report: event => {
        if (event.kind === 'synced') this.#takeOver(begun)
        if (this.#current === begun) this.#options.report(event)
        else if (this.#next === begun) this.#overhear(begun, event)
        if (event.kind !== 'synced' || !isFirst || this.#current !== begun) return
        isFirst = false
        if (config.backend === 'netlink') this.#retireOthers(config)
      },
    })
    this.#configs.set(config.proxyMode, config)
    return begun
  }

  #takeOver(begun: ActiveMode): void {
    if (this.#next !== begun || this.#wouldLose(begun)) return
    const before = this.#current
    this.#next = undefined
    this.#current = begun
    this.#options.log.info(
      { mode: begun.mode, before: before?.mode },
      `switched from ${before?.mode} to ${begun.mode}`,
    )
    this.#leaving = before?.stop()
    const said = this.#resolvedByNext
    this.#resolvedByNext = undefined
    // An older state is not reported: the previous mode may have reported a newer one.
    if (said !== undefined && said.snapshot === this.#newest) this.#options.resolved?.(said)
  }

  /** Tests whether the kernel rejects a family of the next mode alone, and the family has Services. */
  #wouldLose({ status: { failedFamily, table } }: ActiveMode): boolean {
    if (failedFamily === undefined || this.#current?.status.failedFamily !== undefined) return false
    const services = [...(table?.services.values() ?? [])]
    return services.some(({ ports }) => ports.some(({ family }) => family === failedFamily.family))
  }

  /** Logs events of the next mode. The previous mode serves meanwhile. */
  #overhear(begun: ActiveMode, event: ReconcilerEvent): void {
    const { log } = this.#options
    const { mode } = begun
    const serving = this.#current?.mode
    if (event.kind === 'failed' || (event.kind === 'family-failed' && this.#wouldLose(begun)))
      log.warn(
        { mode, serving, err: event.error },
        'cannot switch to the new proxy mode yet; retrying; the old mode serves',
      )
    else if (event.kind === 'quarantined' || event.kind === 'family-failed') {
      const what = event.kind === 'quarantined' ? event.service : event.family
      log.warn({ mode, what, err: event.error }, 'the kernel rejects a Service or IP family in the new mode')
    }
  }

  #retireOthers(config: Config): void {
    if (this.#retirement?.isUnderWay === true) return
    void this.#retirement?.end()
    const { clock, log, sockets } = this.#options
    this.#retirement = new Retirement({
      modes: modesOf(config).filter(mode => mode !== config.proxyMode),
      clock,
      log,
      retire: async (mode, signal) => {
        const known = this.#configs.get(mode)
        const context = { config: known ?? { ...config, proxyMode: mode }, clock, sockets }
        await this.#leaving
        return await findMode(mode).retire(context, signal, known !== undefined)
      },
    })
  }
}

/** Refuses two modes whose reconcilers would undo each other's changes. */
function whyNotBeside(a: Config, b: Config): string | undefined {
  const [ofA, ofB] = [a, b].map(config => findMode(config.proxyMode).exclusive?.(config))
  return a.proxyMode !== b.proxyMode && ofA === ofB ? ofA : undefined
}
