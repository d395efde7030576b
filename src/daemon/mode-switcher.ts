import type { Config, ProxyMode } from '../config/config.ts'
import type { Resolved } from '../model/resolve.ts'
import type { Snapshot } from '../model/snapshot.ts'
import { findMode } from '../modes/registry.ts'
import type { ReconcilerEvent } from '../reconcile/pass.ts'
import type { ReadRows } from '../telemetry/metric-set.ts'
import { type ActiveMode, type ActiveModeOptions, startMode } from './active-mode.ts'
import { leftoversMetric, modesOf, Retirement } from './retirement.ts'

export interface ModeSwitcherOptions extends ActiveModeOptions {
  readonly start?: typeof startMode
}

/** The modes that run. `serving` programs the Services; `next` has to converge beside it before it may serve. */
type Stage =
  | { readonly kind: 'steady'; readonly serving: ActiveMode }
  | {
      readonly kind: 'switching'
      readonly serving: ActiveMode
      readonly next: ActiveMode
      /** The last state that `next` resolved: `serving` may be stuck in its pass and never report its own. */
      resolved: Resolved | undefined
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
  #stage: Stage
  #newest: Snapshot | undefined
  /** The end of the previous mode. Until then, its last pass could restore what retires. */
  #leaving: Promise<void> | undefined
  #retirement: Retirement | undefined

  constructor(config: Config, options: ModeSwitcherOptions) {
    this.#options = options
    this.#stage = { kind: 'steady', serving: this.#begin(config) }
  }

  get current(): ActiveMode {
    return this.#stage.serving
  }

  get leftovers(): Retirement['leftovers'] | undefined {
    return this.#retirement?.leftovers
  }

  offer(snapshot: Snapshot): void {
    this.#newest = snapshot
    this.current.offer(snapshot)
    this.#next?.offer(snapshot)
  }

  paced(): Promise<void> | undefined {
    return this.current.paced()
  }

  /**
   * Takes a new configuration; the caller then offers the Snapshot again. Throws if it cannot be applied, and changes
   * nothing then.
   */
  async change(config: Config): Promise<void> {
    const serving = this.#configs.get(this.current.mode)
    const clash = serving && whyNotBeside(serving, config)
    if (clash !== undefined) throw new Error(clash)
    await this.#retirement?.end(config.proxyMode)
    const begun = this.#beginOrGoOn(config)
    await this.#next?.stop()
    const before = this.current
    if (before.mode !== begun.mode) {
      this.#stage = { kind: 'switching', serving: before, next: begun, resolved: undefined }
      return
    }
    this.#stage = { kind: 'steady', serving: begun }
    await before.stop()
  }

  async metrics(): Promise<ReadRows> {
    const serving = this.current
    const common = leftoversMetric(this.leftovers)
    try {
      return { ...(await serving.metrics()), ...common }
    } catch (err) {
      const what = `${serving.mode} rules or their counters`
      this.#options.log.warn({ err }, `cannot read ${what}; their metrics are missing`)
      return common
    }
  }

  /** Resolves when the other modes are removed from the kernel, or cannot be. */
  async retired(): Promise<void> {
    await this.#retirement?.done
  }

  async stop(): Promise<void> {
    await this.#retirement?.end()
    await this.#next?.stop()
    await this.#leaving
    await this.current.stop()
  }

  get #next(): ActiveMode | undefined {
    return this.#stage.kind === 'switching' ? this.#stage.next : undefined
  }

  /** Begins a mode. If it cannot be opened, an interrupted retirement continues. */
  #beginOrGoOn(config: Config): ActiveMode {
    try {
      return this.#begin(config)
    } catch (thrown) {
      const serving = this.#configs.get(this.current.mode)
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
        const stage = this.#stage
        if (stage.serving === begun) this.#options.resolved?.(its)
        else if (stage.kind === 'switching' && stage.next === begun) stage.resolved = its
      },
      report: event => {
        if (event.kind === 'synced') this.#takeOver(begun)
        if (this.current === begun) this.#options.report(event)
        else if (this.#next === begun) this.#logOfNext(begun, event)
        if (event.kind !== 'synced' || !isFirst || this.current !== begun) return
        isFirst = false
        if (config.backend === 'netlink') this.#retireOthers(config)
      },
    })
    this.#configs.set(config.proxyMode, config)
    return begun
  }

  #takeOver(begun: ActiveMode): void {
    const stage = this.#stage
    if (stage.kind !== 'switching' || stage.next !== begun || this.#wouldLose(begun)) return
    const { serving: before, resolved } = stage
    this.#stage = { kind: 'steady', serving: begun }
    this.#options.log.info(
      { mode: begun.mode, before: before.mode },
      `switched from ${before.mode} to ${begun.mode}`,
    )
    this.#leaving = before.stop()
    // An older state is not reported: the previous mode may have reported a newer one.
    if (resolved !== undefined && resolved.snapshot === this.#newest) this.#options.resolved?.(resolved)
  }

  /** Tests whether the kernel rejects a family of the next mode alone, and the family has Services. */
  #wouldLose({ status: { failedFamily, table } }: ActiveMode): boolean {
    if (failedFamily === undefined || this.current.status.failedFamily !== undefined) return false
    const services = [...(table?.services.values() ?? [])]
    return services.some(({ ports }) => ports.some(({ family }) => family === failedFamily.family))
  }

  /** Logs events of the next mode. The previous mode serves meanwhile. */
  #logOfNext(begun: ActiveMode, event: ReconcilerEvent): void {
    const { log } = this.#options
    const { mode } = begun
    const serving = this.current.mode
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
