import { errorOf } from '../base/errors.ts'
import type { Config, ProxyMode } from '../config/config.ts'
import { whyNotInstance } from '../config/own-flags.ts'
import type { Resolved } from '../model/resolve.ts'
import type { Snapshot } from '../model/snapshot.ts'
import { findMode, MODE_NAMES } from '../modes/registry.ts'
import type { ReconcilerEvent } from '../reconcile/pass.ts'
import type { ModeMetric } from '../telemetry/mode-metrics.ts'
import { type ActiveMode, type ActiveModeOptions, startMode } from './active-mode.ts'

/**
 * Runs the active mode, and switches between modes. A data plane of the same mode adopts the kernel state of the
 * previous one. A data plane of another mode first converges beside the active one; only then does the old mode retire
 * (docs/decisions/0015). At its start, a daemon retires leftovers of other modes in the same way.
 */
export class ModeSwitcher {
  readonly #options: ActiveModeOptions
  /** The last configuration of each mode, which identifies the objects of that mode. */
  readonly #configs = new Map<ProxyMode, Config>()
  #current: ActiveMode | undefined
  /** The next mode, which has not converged yet. */
  #next: ActiveMode | undefined
  /** The last resolved state of the next mode: the active mode may be stuck in its pass and never report its own. */
  #overheard: Resolved | undefined
  #newest: Snapshot | undefined
  /** The end of the previous mode. Until then, its last pass could restore what retires. */
  #leaving: Promise<void> | undefined
  #retirement: Retirement | undefined

  /** Throws if the kernel cannot be reached. */
  constructor(config: Config, options: ActiveModeOptions) {
    this.#options = options
    this.#current = this.#begin(config)
  }

  get current(): ActiveMode | undefined {
    return this.#current
  }

  offer(snapshot: Snapshot): void {
    this.#newest = snapshot
    this.#current?.offer(snapshot)
    this.#next?.offer(snapshot)
  }

  /** See Reconciler.paced. */
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
    this.#overheard = undefined
    if (this.#current?.mode === begun.mode) {
      const before = this.#current
      this.#current = begun
      await before.stop()
    } else this.#next = begun
  }

  /** Gives the metrics of the active mode. */
  async metrics(): Promise<readonly ModeMetric[]> {
    const serving = this.#current
    try {
      return (await serving?.metrics()) ?? []
    } catch (err) {
      const what = `${serving?.mode} rules or their counters`
      this.#options.log.warn({ err }, `cannot read ${what}; their metrics are missing`)
      return []
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
    const begun: ActiveMode = startMode(config, {
      ...this.#options,
      // The next mode resolves the same Snapshots, and may be the only one that does.
      resolved: its => {
        if (this.#current === undefined || this.#current === begun) this.#options.resolved?.(its)
        else if (this.#next === begun) this.#overheard = its
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
    if (this.#next !== begun) return
    const before = this.#current
    this.#next = undefined
    this.#current = begun
    this.#options.log.info(
      { mode: begun.mode, before: before?.mode },
      `switched from ${before?.mode} to ${begun.mode}`,
    )
    this.#leaving = before?.stop()
    const said = this.#overheard
    this.#overheard = undefined
    // An older state is not reported: the previous mode may have reported a newer one.
    if (said !== undefined && said.snapshot === this.#newest) this.#options.resolved?.(said)
  }

  /** Logs events of the next mode. The previous mode serves meanwhile. */
  #overhear({ mode }: ActiveMode, event: ReconcilerEvent): void {
    const { log } = this.#options
    const serving = this.#current?.mode
    if (event.kind === 'failed')
      log.warn(
        { mode, serving, err: event.error },
        'cannot switch to the new proxy mode yet; retrying; the old mode serves',
      )
    else if (event.kind === 'quarantined')
      log.warn(
        { mode, service: event.service, err: event.error },
        'the kernel rejects a Service in the new proxy mode',
      )
  }

  #retireOthers(config: Config): void {
    if (this.#retirement?.isUnderWay === true) return
    const others = modesOf(config).filter(mode => mode !== config.proxyMode)
    this.#retirement = new Retirement(others, (mode, signal) => this.#retire(mode, config, signal))
  }

  async #retire(mode: ProxyMode, config: Config, signal: AbortSignal): Promise<void> {
    const { clock, log, sockets } = this.#options
    const known = this.#configs.get(mode)
    const context = { config: known ?? { ...config, proxyMode: mode }, clock, sockets }
    try {
      await this.#leaving
      const found = await findMode(mode).retire(context, signal, known !== undefined)
      if (signal.aborted) return
      if (found === 'removed') log.info({ mode }, `removed leftovers of ${mode} mode`)
      else if (found !== 'nothing') log.warn({ mode }, found.kept)
    } catch (thrown) {
      if (!signal.aborted)
        log.error(
          { mode, err: errorOf(thrown) },
          'cannot remove leftovers of this proxy mode; run `kprobe cleanup`',
        )
    }
  }
}

/** Lists the modes that the proxy may have used. In other modes, objects belong to another proxy. */
function modesOf({ serviceProxyName: name }: Config): readonly ProxyMode[] {
  return name === undefined ? MODE_NAMES : MODE_NAMES.filter(mode => whyNotInstance(name, mode) === undefined)
}

/** Removes other modes from the kernel. It can be canceled: the next daemon, or the next change, goes on. */
class Retirement {
  readonly done: Promise<void>
  #isUnderWay = true
  readonly #modes: readonly ProxyMode[]
  readonly #stop = new AbortController()

  constructor(modes: readonly ProxyMode[], retire: (mode: ProxyMode, signal: AbortSignal) => Promise<void>) {
    this.#modes = modes
    this.done = this.#run(retire)
  }

  get isUnderWay(): boolean {
    return this.#isUnderWay
  }

  /** Cancels the retirement of this mode; without a mode, any retirement. */
  async end(mode?: ProxyMode): Promise<void> {
    if (mode !== undefined && !this.#modes.includes(mode)) return
    this.#stop.abort()
    await this.done
  }

  async #run(retire: (mode: ProxyMode, signal: AbortSignal) => Promise<void>): Promise<void> {
    for (const mode of this.#modes) if (!this.#stop.signal.aborted) await retire(mode, this.#stop.signal)
    this.#isUnderWay = false
  }
}

/** Refuses two modes whose reconcilers would undo each other's changes. */
function whyNotBeside(a: Config, b: Config): string | undefined {
  const [ofA, ofB] = [a, b].map(config => findMode(config.proxyMode).exclusive?.(config))
  return a.proxyMode !== b.proxyMode && ofA === ofB ? ofA : undefined
}
