import type { Config } from '../config/config.ts'
import {
  configChanges,
  type FieldChange,
  logFieldChanges,
  programmingFields,
  tuningFields,
} from '../config/config-changes.ts'
import type { Intake } from './intake.ts'
import type { DaemonIo } from './io.ts'
import type { ModeSwitcher } from './mode-switcher.ts'
import type { Observer } from './observer.ts'
import type { Servers } from './servers.ts'

interface ConfigurationOptions extends Pick<DaemonIo, 'log' | 'tune' | 'setOomScoreAdj' | 'setLogging'> {
  readonly observer: () => Observer
  readonly intake: () => Intake
  readonly servers: () => Servers | undefined
  readonly switcher: () => ModeSwitcher | undefined
  readonly followIps: () => Promise<void>
  readonly connectAnew: (config: Config) => Promise<void>
}

/** The configuration in use. A new one is applied part by part, while Services are served. */
export class Configuration {
  readonly #options: ConfigurationOptions
  #now: Config
  /** Fields of a configuration that was not completely applied: the next one applies them first. */
  #unapplied: ReadonlySet<keyof Config> = new Set()

  constructor(config: Config, options: ConfigurationOptions) {
    this.#now = config
    this.#options = options
  }

  get now(): Config {
    return this.#now
  }

  /** Applies a new configuration as far as possible: a part that fails leaves the later ones as they were. */
  async change(config: Config, fields: readonly FieldChange[]): Promise<void> {
    const { log, observer } = this.#options
    const before = this.#now
    const changes = configChanges(before, config)
    logFieldChanges(log, changes, fields)
    const kept = Object.fromEntries(changes.process.map(field => [field, before[field]]))
    const after: Config = { ...config, ...kept }
    this.#now = after
    const changed = new Set([...this.#unapplied, ...changes.live, ...changes.restart])
    try {
      await this.#apply(after, changed)
      this.#unapplied = new Set()
      observer().configChanged('applied')
      log.info('configuration applied')
    } catch (err) {
      this.#unapplied = changed
      observer().configChanged('refused')
      log.error({ err }, 'cannot apply the whole new configuration; Services are served as before')
    }
  }

  async #apply(after: Config, changed: ReadonlySet<keyof Config>): Promise<void> {
    const { tune, setOomScoreAdj, setLogging, observer, intake, servers, switcher } = this.#options
    if (changed.has('verbosity') || changed.has('logFormat')) setLogging?.(after)
    if (changed.has('oomScoreAdj')) await setOomScoreAdj?.(after.oomScoreAdj)
    if (changed.has('syncPeriodMs')) observer().health.syncPeriod(after.syncPeriodMs)
    servers()?.apply(after)
    const isProgramming = programmingFields(after).some(field => changed.has(field))
    // The switcher may refuse the configuration: then none of the later parts has changed.
    if (isProgramming) await switcher()?.change(after)
    // The mode has loaded its kernel modules by now. Their settings must exist, and be set before the first commit.
    if (tuningFields(after).some(field => changed.has(field))) await tune?.(after)
    if (changed.has('nodePortAddresses') || changed.has('proxyMode')) await this.#options.followIps()
    // The objects are the same, but the new configuration may resolve them differently.
    if (isProgramming) intake().repeat()
    if (changed.has('client')) await this.#options.connectAnew(after)
  }
}
