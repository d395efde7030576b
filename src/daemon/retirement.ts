import { type Clock, pause } from '../base/clock.ts'
import { errorOf } from '../base/errors.ts'
import type { Log } from '../base/log.ts'
import type { Config, ProxyMode } from '../config/config.ts'
import { MODE_NAMES } from '../config/modes.ts'
import { whyNotInstance } from '../config/own-flags.ts'
import type { Retired } from '../modes/mode.ts'
import type { HealthCheck } from '../telemetry/health.ts'
import { type ReadRows, readGauge } from '../telemetry/metric-set.ts'

/** Lists the modes that the proxy may have used. In other modes, objects belong to another proxy. */
export function modesOf({ serviceProxyName: name }: Config): readonly ProxyMode[] {
  return name === undefined ? MODE_NAMES : MODE_NAMES.filter(mode => whyNotInstance(name, mode) === undefined)
}

interface RetirementOptions {
  readonly modes: readonly ProxyMode[]
  readonly clock: Clock
  readonly log: Log
  readonly retire: (mode: ProxyMode, signal: AbortSignal) => Promise<Retired>
}

/** The reasons for which objects of a mode are still in the kernel. */
type Leftovers = ReadonlyMap<ProxyMode, string>

/**
 * Removes other modes from the kernel, and tries again each minute while something is left. It can be canceled: the next
 * daemon, or the next change, continues.
 */
export class Retirement {
  readonly done: Promise<void>
  readonly #ended: Promise<void>
  readonly #options: RetirementOptions
  readonly #stop = new AbortController()
  readonly #leftovers = new Map<ProxyMode, string>()
  #isUnderWay = true

  constructor(options: RetirementOptions) {
    this.#options = options
    this.done = this.#try(options.modes)
    this.#ended = this.#tryAgain()
  }

  get isUnderWay(): boolean {
    return this.#isUnderWay
  }

  get leftovers(): Leftovers {
    return this.#leftovers
  }

  async end(mode?: ProxyMode): Promise<void> {
    if (mode !== undefined && !this.#options.modes.includes(mode)) return
    this.#stop.abort()
    await this.#ended
  }

  async #tryAgain(): Promise<void> {
    const { signal } = this.#stop
    await this.done
    this.#isUnderWay = false
    while (this.#leftovers.size > 0 && !signal.aborted) {
      await pause(this.#options.clock, 60_000, signal)
      await this.#try([...this.#leftovers.keys()])
    }
  }

  async #try(modes: readonly ProxyMode[]): Promise<void> {
    for (const mode of modes) if (!this.#stop.signal.aborted) await this.#retire(mode)
  }

  async #retire(mode: ProxyMode): Promise<void> {
    const { log, retire } = this.#options
    const { signal } = this.#stop
    try {
      const found = await retire(mode, signal)
      if (signal.aborted) return
      if (found !== 'removed' && found !== 'nothing') {
        if (this.#isNews(mode, found.kept)) log.warn({ mode }, found.kept)
        return
      }
      this.#leftovers.delete(mode)
      if (found === 'removed') log.info(`removed leftovers of ${mode} mode`)
    } catch (thrown) {
      const err = errorOf(thrown)
      if (!signal.aborted && this.#isNews(mode, `cannot remove them: ${err.message}`))
        log.error({ mode, err }, 'cannot remove leftovers of this proxy mode; retrying every minute')
    }
  }

  #isNews(mode: ProxyMode, why: string): boolean {
    const isNews = this.#leftovers.get(mode) !== why
    this.#leftovers.set(mode, why)
    return isNews
  }
}

export function leftoversCheck(leftovers: Leftovers | undefined): HealthCheck | undefined {
  if (leftovers === undefined || leftovers.size === 0) return undefined
  const failure = [...leftovers].map(([mode, why]) => `${mode} mode: ${why}`).join('; ')
  return { name: 'leftovers', failure, isAdvice: true }
}

export function leftoversMetric(leftovers: Leftovers | undefined): ReadRows {
  return {
    kprobe_leftover_modes: readGauge(
      'Proxy modes that are not in use and whose objects are still in the kernel, where they may serve.',
      () => Array.from(leftovers?.keys() ?? [], mode => [{ mode }, 1]),
      'mode',
    ),
  }
}
