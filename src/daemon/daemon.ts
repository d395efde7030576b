import { buildText } from '../base/build-info.ts'
import { FAMILIES } from '../base/ip.ts'
import { privilegeHint } from '../base/privilege.ts'
import type { Config } from '../config/config.ts'
import { configChanges } from '../config/config-changes.ts'
import type { FrontendTable } from '../model/frontend.ts'
import type { ReconcilerEvent } from '../reconcile/events.ts'
import type { LocalAddresses } from '../source/local-addresses.ts'
import type { Source, SourceProblem } from '../source/source.ts'
import { conntrackFull } from '../telemetry/event-facts.ts'
import { EventRecorder } from '../telemetry/events.ts'
import { type ApiService, apiOf } from './api-service.ts'
import { Cluster } from './cluster.ts'
import { Flows } from './flows.ts'
import { programmingFields, TUNING_FIELDS } from './followed-fields.ts'
import { instanceOf } from './instance.ts'
import { lockInstance } from './instance-lock.ts'
import { Intake } from './intake.ts'
import type { DaemonIo, Written } from './io.ts'
import { Observer } from './observer.ts'
import { openFileSource, openGeneric, openRoute, watchLocalIps } from './open.ts'
import { Outward } from './outward.ts'
import { adminPages } from './pages.ts'
import { Programmer } from './programmer.ts'
import type { Programming } from './programming.ts'

export type { DaemonIo, Sync, Written } from './io.ts'

const NOTHING_WRITTEN: Written = { commits: 0, changes: 0, bytes: 0, durationMs: 0 }
/** With --once: passes that may fail before the process does. */
const ONCE_FAILURES_MAX = 3

/** Runs until told to stop, or until the first sync with --once. Gives the exit code. */
export async function runDaemon(config: Config, io: DaemonIo): Promise<number> {
  if (config.backend === 'dry-run') return await new Daemon(config, io).run()
  const name = config.serviceProxyName
  const lock = await lockInstance(instanceOf(name), io.takeLock, `pid ${io.processId}`)
  if (lock.kind === 'busy') {
    const holder = lock.holder === '' ? 'which does not answer' : lock.holder
    io.log.error({ holder }, busyText(name, lock.of))
    return 1
  }
  try {
    return await new Daemon(config, io).run()
  } finally {
    await lock.release()
  }
}

function busyText(name: string | undefined, of: 'name' | 'chains'): string {
  if (name === undefined)
    return 'another kprobe runs in this network namespace; two would fight over the same tables'
  return of === 'name'
    ? 'another kprobe with this --service-proxy-name runs in this network namespace; two would fight over the same tables'
    : 'another kprobe runs in this network namespace whose --service-proxy-name has the same hash as this one, and chains of iptables of the same names with it; choose another name'
}

class Daemon {
  readonly #io: DaemonIo
  readonly #observer: Observer
  readonly #intake: Intake
  readonly #api: ApiService | undefined
  readonly #done: Promise<number>
  #config: Config
  #finish: (code: number) => void = () => undefined
  #programmer: Programmer | undefined
  #cluster: Cluster | undefined
  #recorder: EventRecorder | undefined
  #outward: Outward | undefined
  #flows: Flows | undefined
  #localIps: LocalAddresses | undefined
  #previous: FrontendTable | undefined
  #written = NOTHING_WRITTEN
  #failures = 0
  #isOnceOfNothing = false
  /** Fields of a configuration that could not be applied as a whole: the next one starts with them. */
  #unapplied = NO_FIELDS

  constructor(config: Config, io: DaemonIo) {
    this.#config = config
    this.#io = io
    this.#done = new Promise(resolve => {
      this.#finish = resolve
    })
    this.#api = apiOf(config, io, () => this.#intake.status)
    this.#observer = this.#observe()
    this.#intake = new Intake({
      clock: io.clock,
      keepsNode: config.source.kind === 'kube',
      changed: snapshot => {
        this.#observer.offered(snapshot)
        // A wrong path must not remove every Service.
        if (!this.#isOnceOfNothing) this.#programmer?.offer(snapshot)
      },
      handlers: {
        refusals: list => this.#observer.refused(list),
        problem: problem => this.#problem(problem),
        observed: observation => this.#observer.observed(observation),
      },
    })
  }

  async run(): Promise<number> {
    const { log, signal, follow } = this.#io
    if (!(await this.#open())) return 1
    if ((await this.#api?.listen()) === false) return await this.#close(1)
    const aborted = () => this.#finish(this.#config.once ? 1 : 0)
    signal.addEventListener('abort', aborted, { once: true })
    if (signal.aborted) aborted()
    this.#localIps = this.#watchIps()
    await this.#intake.follow(this.#source(this.#config))
    const unfollow = follow?.({
      changed: config => this.#reconfigure(config),
      refused: () => this.#observer.metrics.configChanged('refused'),
    })
    const code = await this.#done
    signal.removeEventListener('abort', aborted)
    await unfollow?.()
    // Read while the parts are there that they are read from.
    if (log.isLevelEnabled('trace')) log.trace({ metrics: await this.#observer.metrics.text() }, 'ending')
    return await this.#close(code)
  }

  /** False when there is nothing to run with, which was told. */
  async #open(): Promise<boolean> {
    const { log, tune, setOomScoreAdj } = this.#io
    const config = this.#config
    try {
      this.#programmer = this.#program(config)
    } catch (err) {
      const hint = privilegeHint(err)
      log.fatal({ err, ...(hint === undefined ? {} : { hint }) }, 'cannot speak with the kernel')
      return false
    }
    if (config.source.kind === 'kube') {
      try {
        await this.#connect(config)
      } catch (err) {
        log.fatal({ err }, 'the API server cannot be asked')
        await this.#programmer.stop()
        return false
      }
    }
    if (config.backend !== 'netlink') return true
    await tune?.(config)
    if (config.once) return true
    await setOomScoreAdj?.(config.oomScoreAdj)
    this.#flows = this.#openFlows()
    await this.#listen(config)
    return true
  }

  async #close(code: number): Promise<number> {
    await this.#api?.close()
    await this.#localIps?.stop()
    await this.#intake.stop()
    await this.#flows?.stop()
    await this.#programmer?.stop()
    await this.#outward?.close()
    await this.#recorder?.stop()
    await this.#cluster?.close()
    return code
  }

  #observe(): Observer {
    const { log, clock, wallMs, build } = this.#io
    const { nodeName, syncPeriodMs, connectionMetricsMax, featureGates, allowServiceExternalIps } =
      this.#config
    const gates = { ...featureGates, AllowServiceExternalIPs: allowServiceExternalIps }
    return new Observer({
      log,
      clock,
      wallMs,
      nodeName,
      syncPeriodMs,
      build,
      families: FAMILIES,
      // Files need not hold a Node.
      eligibleWithoutNode: this.#config.source.kind === 'file' ? true : undefined,
      source: () => this.#intake.status,
      quarantined: () => this.#programming?.status.quarantined.length ?? 0,
      outward: () => ({ ...(this.#outward?.state ?? { ready: false }), events: this.#recorder?.counts }),
      features: Object.entries(gates).map(([name, enabled]) => ({ name, stage: '', enabled })),
      tell: fact => this.#recorder?.record(fact),
      proxyMode: () => this.#programming?.mode ?? this.#config.proxyMode,
      iptables: () => this.#iptablesNumbers(),
      relayed: () => this.#programming?.relayed(),
      api: this.#api?.numbers,
      connections:
        connectionMetricsMax === 0
          ? undefined
          : {
              seriesMax: connectionMetricsMax,
              read: async () => (await this.#programming?.traffic()) ?? [],
              nowMs: () => clock.nowMs(),
              failed: err => log.warn({ err }, 'the counters of connections cannot be read'),
            },
    })
  }

  async #iptablesNumbers(): ReturnType<Programming['numbers']> {
    try {
      return await this.#programming?.numbers()
    } catch (err) {
      this.#io.log.warn({ err }, 'the rules of iptables, or their counters, cannot be counted')
      return undefined
    }
  }

  get #programming(): Programming | undefined {
    return this.#programmer?.current
  }

  #program(config: Config): Programmer {
    const { clock, log, random, planned, readSetting, room } = this.#io
    return new Programmer(config, {
      clock,
      log,
      random,
      sockets: {
        netfilter: this.#io.openTransport,
        generic: this.#io.openGeneric ?? openGeneric,
        route: this.#io.openRoute ?? openRoute,
        ...(readSetting === undefined ? {} : { setting: readSetting }),
        ...(room === undefined ? {} : { room }),
      },
      planned,
      report: event => this.#report(event),
      resolved: resolved => this.#api?.offer(resolved),
      tell: event => this.#observer.modeEvent(event),
      misfits: list => {
        for (const refusal of list)
          log.warn(refusal, 'refused: the kernel, or this mode, has no place for it')
      },
    })
  }

  async #connect(config: Config): Promise<void> {
    const { clock, random, wallMs, log, openClient } = this.#io
    const { nodeName } = config
    if (openClient === undefined)
      throw new Error('there is no way to an API server here; give --source=file:PATH')
    const cluster = new Cluster({
      client: await openClient(config),
      clock,
      random,
      requested: request => this.#observer.metrics.apiRequest(request),
    })
    this.#cluster = cluster
    if (config.once || config.backend !== 'netlink') return
    this.#recorder ??= new EventRecorder({
      clock,
      wallMs,
      random,
      nodeName,
      uidOf: service => this.#intake.snapshot.services.get(service)?.uid ?? '',
      post: async write => (await this.#cluster?.post(write, log)) ?? 'retry',
      lost: (why, regarding, reason) => log.debug({ why, regarding, reason }, 'an event was not delivered'),
    })
  }

  #source(config: Config): Source {
    const reading = { details: this.#api !== undefined }
    return this.#cluster?.source(config, reading) ?? openFileSource(config, this.#io.clock, reading)
  }

  #openFlows(): Flows | undefined {
    const { clock, random, log, openConntrack } = this.#io
    if (openConntrack === undefined) return undefined
    const { nodeName } = this.#config
    return new Flows({
      clock,
      random,
      log,
      openTransport: openConntrack,
      metrics: this.#observer.metrics,
      full: table => this.#recorder?.record(conntrackFull(nodeName, table)),
    })
  }

  async #listen(config: Config): Promise<void> {
    const { clock, log, listens, configz, flags = new Map(), wallMs, build } = this.#io
    if (!listens) return
    this.#outward = new Outward({
      clock,
      log,
      families: FAMILIES,
      observer: this.#observer,
      configz,
      flags,
      status: {
        startedWallMs: this.#observer.startedWallMs,
        version: buildText(build),
        nodeName: config.nodeName,
      },
      wallMs,
      pages: adminPages({
        programming: () => this.#programming,
        config: () => this.#config,
        version: buildText(build),
        intake: this.#intake,
        nowMs: () => clock.nowMs(),
        receipts: this.#observer.receipts,
      }),
      proxyMode: () => this.#programming?.mode ?? this.#config.proxyMode,
      tell: fact => this.#recorder?.record(fact),
      failed: () => this.#finish(1),
    })
    await this.#outward.follow(config)
  }

  #watchIps(): LocalAddresses | undefined {
    const { clock, log, openRoute } = this.#io
    const watch = watchLocalIps(this.#config, clock, {
      ...(openRoute === undefined ? {} : { openTransport: openRoute }),
      changed: value => this.#intake.takeIps(value),
      failed: err => {
        const isKnown = this.#intake.snapshot.localIps.length > 0
        const rest = isKnown ? 'the last list stays' : 'nothing is programmed before they are known'
        log.warn({ err }, `the addresses of this machine cannot be read; ${rest}`)
        this.#observer.metrics.sourceProblem()
        if (this.#config.once) this.#finish(1)
      },
      recovered: () => log.info('the addresses of this machine are read again'),
    })
    if (watch === undefined) this.#intake.ignoreIps()
    else this.#intake.awaitIps()
    return watch
  }

  /** A new configuration: what can be applied is, part by part; Services are served all the while. */
  async #reconfigure(config: Config): Promise<void> {
    const { log } = this.#io
    const before = this.#config
    const { live, restart, process } = configChanges(before, config)
    if (process.length > 0)
      log.warn({ fields: process }, 'the new configuration needs a restart for these fields')
    const kept = Object.fromEntries(process.map(field => [field, before[field]]))
    const after: Config = { ...config, ...kept }
    this.#config = after
    const changed = new Set([...this.#unapplied, ...live, ...restart])
    log.info({ fields: [...changed] }, 'the configuration has changed')
    try {
      await this.#apply(after, changed)
      this.#unapplied = NO_FIELDS
      this.#observer.metrics.configChanged('applied')
    } catch (err) {
      this.#unapplied = changed
      this.#observer.metrics.configChanged('refused')
      log.error(
        { err },
        'the new configuration could not be applied as a whole; Services are served as before',
      )
    }
  }

  async #apply(after: Config, changed: ReadonlySet<keyof Config>): Promise<void> {
    const { tune, setOomScoreAdj, setLogging } = this.#io
    if (changed.has('verbosity') || changed.has('logFormat')) setLogging?.(after)
    if (changed.has('oomScoreAdj')) await setOomScoreAdj?.(after.oomScoreAdj)
    if (changed.has('syncPeriodMs')) this.#observer.health.syncPeriod(after.syncPeriodMs)
    await this.#outward?.follow(after)
    const isProgramming = programmingFields(after).some(field => changed.has(field))
    // First what may be refused: then everything else is as it was.
    if (isProgramming) await this.#programmer?.change(after)
    // Settings come with the modules that the mode has asked for by now, and are there before its first commit.
    if (TUNING_FIELDS.some(field => changed.has(field))) await tune?.(after)
    if (changed.has('nodePortAddresses') || changed.has('proxyMode')) {
      const before = this.#localIps
      this.#localIps = this.#watchIps()
      await before?.stop()
    }
    // The same objects, but whoever reads them reads them differently now.
    if (isProgramming) this.#intake.repeat()
    if (changed.has('client')) await this.#connectAnew(after)
  }

  /** Another connection, from which everything is read anew; what is known stays until that is complete. */
  async #connectAnew(config: Config): Promise<void> {
    const old = this.#cluster
    if (old === undefined) return
    await this.#connect(config)
    await this.#intake.follow(this.#source(config))
    await old.close()
  }

  #problem({ kind, place, text }: SourceProblem): void {
    const { log } = this.#io
    if (kind === 'recovered') log.info({ place }, text)
    else log.warn({ place }, text)
    if (kind === 'empty' && this.#config.once) {
      this.#isOnceOfNothing = true
      this.#finish(1)
    }
    if (kind !== 'failed') return
    this.#observer.metrics.sourceProblem()
    if (this.#config.once && !this.#intake.complete) this.#finish(1)
  }

  #report(event: ReconcilerEvent): void {
    this.#observer.report(event)
    if (event.kind === 'committed') this.#written = add(this.#written, event)
    else if (event.kind === 'synced') this.#synced(event)
    else if (event.kind === 'failed') this.#failed(event.error)
  }

  #failed(error: Error): void {
    this.#failures++
    // A privilege does not come by waiting.
    const isHopeless = privilegeHint(error) !== undefined || this.#failures >= ONCE_FAILURES_MAX
    if (this.#config.once && isHopeless) this.#finish(1)
  }

  #synced(event: Extract<ReconcilerEvent, { readonly kind: 'synced' }>): void {
    const status = this.#programming?.status
    if (status?.table === undefined || status.snapshot === undefined) return
    const { table, snapshot } = status
    if (this.#previous === undefined) this.#cluster?.warnOfLoop(table, this.#io.log)
    this.#observer.synced(event, snapshot, table)
    this.#outward?.update(table)
    // Flows are judged by the newest word: an endpoint that the next commit brings is nobody's stale one. Those of the
    // mode userspace lead to this process, never to an endpoint.
    if (this.#programming?.mode !== 'userspace') this.#flows?.offer(this.#intake.snapshot, table)
    const [previous, written] = [this.#previous, this.#written]
    this.#previous = table
    this.#written = NOTHING_WRITTEN
    this.#failures = 0
    this.#io.synced({ reason: event.reason, snapshot, table, previous, written })
    if (!this.#config.once || table.number !== this.#intake.snapshot.number) return
    const isWhole = status.quarantined.length === 0 && this.#programming?.hasMisfits !== true
    void this.#programmer?.retired().then(() => this.#finish(isWhole ? 0 : 1))
  }
}

const NO_FIELDS: ReadonlySet<keyof Config> = new Set()

function add(
  a: Written,
  {
    plan: { changes },
    receipt: { bytes, durationMs },
  }: Extract<ReconcilerEvent, { readonly kind: 'committed' }>,
): Written {
  return {
    commits: a.commits + 1,
    changes: a.changes + changes,
    bytes: a.bytes + bytes,
    durationMs: a.durationMs + durationMs,
  }
}
