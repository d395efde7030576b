import { privilegeHint } from '../base/errors.ts'
import type { Config } from '../config/config.ts'
import type { FrontendTable } from '../model/frontend.ts'
import type { SnapshotEvent } from '../model/snapshot.ts'
import type { KernelSockets } from '../modes/mode.ts'
import { findMode } from '../modes/registry.ts'
import type { ReconcilerEvent } from '../reconcile/pass.ts'
import type { LocalAddresses } from '../source/local-addresses.ts'
import type { Source, SourceProblem } from '../source/source.ts'
import { conntrackFull, type EventFact } from '../telemetry/event.ts'
import type { EventRecorder } from '../telemetry/events.ts'
import type { ActiveMode } from './active-mode.ts'
import { type ApiReach, apiReachOf } from './api-reach.ts'
import { type Ending, logEnd, logFirstSync, logMetrics, logStart, logState, reasonOf } from './banner.ts'
import { type KubeProxyWatch, kubeProxyWatchOf } from './beside.ts'
import { Cluster, recorderOf } from './cluster.ts'
import { Configuration } from './configuration.ts'
import { type FailOver, failOverOf } from './fail-over.ts'
import { type Flows, flowsOf } from './flows.ts'
import { asOnlyInstance } from './instance-lock.ts'
import { Intake } from './intake.ts'
import { addWritten, type DaemonIo, NOTHING_WRITTEN } from './io.ts'
import { ModeSwitcher } from './mode-switcher.ts'
import { type NodeCondition, nodeConditionOf } from './node-condition.ts'
import { nodeListenersOf } from './node-listeners.ts'
import { NodeWatch } from './node-watch.ts'
import { Observer } from './observer.ts'
import { OnceFailures } from './once.ts'
import {
  apiOf,
  connectionsOf,
  followLocalIps,
  openFileSource,
  openProver,
  openUnanswered,
  socketsOf,
} from './open.ts'
import type { DaemonApi, DaemonProver, DaemonUnanswered, MakeApi } from './optional-parts.ts'
import { type DescriptorBudget, daemonDescriptors, partsMax } from './process-room.ts'
import { RefusedPackets } from './refused-packets.ts'
import { leftoversCheck } from './retirement.ts'
import { mayServe, type SavedState, savedStateOf } from './saved/saved-state.ts'
import { Servers } from './servers.ts'

export async function runDaemon(config: Config, io: DaemonIo): Promise<number> {
  const makeApi = config.api === undefined ? undefined : await io.parts.api()
  if (config.backend === 'dry-run') return await new Daemon(config, io, makeApi).run()
  const { serviceProxyName } = config
  return await asOnlyInstance(serviceProxyName, io, watch =>
    new Daemon(config, { ...io, ...watch }, makeApi).run(),
  )
}

class Daemon {
  readonly #io: DaemonIo
  readonly #descriptors: DescriptorBudget
  readonly #sockets: KernelSockets
  readonly #observer: Observer
  readonly #refusedPackets: RefusedPackets
  readonly #intake: Intake
  readonly #api: DaemonApi | undefined
  readonly #node: NodeWatch
  readonly #reach: ApiReach
  readonly #done: Promise<Ending>
  readonly #configuration: Configuration
  #finish: (code: number, why: string) => void = () => undefined
  #switcher: ModeSwitcher | undefined
  #cluster: Cluster | undefined
  #recorder: EventRecorder | undefined
  #servers: Servers | undefined
  #flows: Flows | undefined
  #failOver: FailOver | undefined
  #saved: SavedState | undefined
  #condition: NodeCondition | undefined
  #prover: DaemonProver | undefined
  #kubeProxy: KubeProxyWatch | undefined
  #unanswered: DaemonUnanswered | undefined
  #localIps: LocalAddresses | undefined
  #syncedTable: FrontendTable | undefined
  #written = NOTHING_WRITTEN
  readonly #failures = new OnceFailures()

  constructor(config: Config, io: DaemonIo, makeApi?: MakeApi) {
    this.#configuration = new Configuration(config, {
      ...io,
      observer: () => this.#observer,
      intake: () => this.#intake,
      servers: () => this.#servers,
      switcher: () => this.#switcher,
      followIps: () => this.#followIps(),
      connectAnew: after => this.#connectAnew(after),
    })
    this.#io = io
    this.#done = new Promise(resolve => {
      this.#finish = (code, why) => resolve({ code, why })
    })
    this.#descriptors = daemonDescriptors(io.room?.())
    this.#sockets = socketsOf(io, this.#descriptors)
    this.#api = apiOf(config, { ...io, descriptors: this.#descriptors, makeApi }, () => this.#intake.status)
    this.#refusedPackets = new RefusedPackets(config, io)
    this.#observer = this.#observe()
    this.#reach = apiReachOf(config, io, {
      sockets: this.#sockets,
      changed: endpoints => this.#intake.takeApiEndpoints(endpoints),
    })
    this.#node = new NodeWatch({
      ...io,
      config: () => this.#config,
      nameFrom: io.origins.nodeName,
      others: async () => (await this.#cluster?.nodeNames()) ?? this.#intake.status?.otherNodes ?? [],
    })
    const { metrics } = this.#observer
    const listeners = nodeListenersOf(config, { ...io, metrics }, () => this.#intake.refresh())
    this.#intake = new Intake({
      keepsNode: config.source.kind === 'kube',
      completed: (snapshot, occasion) => listeners?.completed(snapshot, occasion) ?? snapshot,
      confirmed: () => this.#saved?.confirmed(),
      nodeChanged: node => {
        this.#node.take(node)
        this.#observer.node(node)
        this.#condition?.take(node?.uid)
      },
      counter: this.#observer,
      handlers: {
        refusals: list => this.#observer.refused(list),
        problem: problem => this.#problem(problem),
        observed: observation => this.#observer.observed(observation),
      },
    })
  }

  async run(): Promise<number> {
    const { log, signal, followConfig, asked, engine } = this.#io
    logStart(log, this.#config, this.#io)
    if (!(await this.#open())) return 1
    if ((await this.#api?.listen()) === false) return await this.#close(1)
    const aborted = () => this.#finish(this.#config.once ? 1 : 0, reasonOf(signal))
    signal.addEventListener('abort', aborted, { once: true })
    if (signal.aborted) aborted()
    engine?.loads(findMode(this.#config.proxyMode))
    await this.#followIps()
    await this.#intake.follow(this.#source(this.#config))
    this.#saved?.begin()
    const unfollow = followConfig?.({
      changed: (config, fields) => this.#configuration.change(config, fields),
      refused: () => this.#observer.configChanged('refused'),
    })
    const forget = asked?.(() => {
      const { status: source, snapshot } = this.#intake
      const health = this.#observer.health.readiness()
      logState(log, { activeMode: this.#activeMode, source, snapshot, health, nowMs: this.#io.clock.nowMs() })
    })
    const { code, why } = await this.#done
    forget?.()
    signal.removeEventListener('abort', aborted)
    logEnd(log, this.#config, { why, isSynced: this.#observer.health.hasSynced })
    await unfollow?.()
    // The metrics read parts of the daemon that close afterwards.
    if (log.isLevelEnabled('trace')) logMetrics(log, await this.#observer.metrics.text())
    return await this.#close(code)
  }

  /** Gives false if the daemon cannot start; the reason is in the log. */
  async #open(): Promise<boolean> {
    const { log, tune, setOomScoreAdj } = this.#io
    const config = this.#config
    try {
      this.#switcher = this.#program(config)
      this.#intake.deliverTo(this.#switcher)
    } catch (err) {
      const hint = privilegeHint(err)
      log.fatal({ err, ...(hint === undefined ? {} : { hint }) }, 'cannot open sockets to the kernel')
      return false
    }
    if (config.source.kind === 'kube') {
      try {
        await this.#connect(config)
      } catch (err) {
        log.fatal({ err }, 'cannot create the API client')
        await this.#switcher.stop()
        return false
      }
    }
    if (config.backend !== 'netlink') return true
    await tune?.(config)
    this.#observer.health.advise(() => leftoversCheck(this.#switcher?.leftovers))
    if (config.once) return true
    await setOomScoreAdj?.(config.oomScoreAdj)
    this.#flows = flowsOf(this.#io, {
      metrics: this.#observer.metrics,
      share: () => this.#config.syncShare,
      full: table => this.#recorder?.record(conntrackFull(config.nodeName, table)),
    })
    this.#failOver = this.#openFailOver(config)
    this.#saved = this.#openSavedState(config)
    this.#condition = this.#openCondition(config)
    this.#prover = await openProver(config, {
      ...this.#parts,
      metrics: this.#observer.metrics,
      health: this.#observer.health,
    })
    this.#unanswered = await openUnanswered(config.nodeName, this.#io, {
      held: () => this.#activeMode?.status,
      tell: fact => this.#recorder?.record(fact),
    })
    if (!this.#io.listens) return true
    this.#servers = new Servers({
      ...this.#parts,
      descriptors: this.#descriptors,
      api: this.#api,
      page: await this.#io.parts.page(),
      observer: this.#observer,
      intake: this.#intake,
      config: () => this.#config,
      credentials: async () => await this.#cluster?.credentialsEnd(),
      refusedBefore: () => this.#refusedPackets.before,
      failed: () => this.#finish(1, 'cannot listen (--bind-address-hard-fail)'),
    })
    this.#servers.apply(config)
    this.#kubeProxy = this.#openKubeProxyWatch(config)
    return true
  }

  async #close(code: number): Promise<number> {
    this.#node.stop()
    await this.#api?.close()
    await this.#localIps?.stop()
    await this.#intake.stop()
    await this.#saved?.stop()
    // Their requests end with the client.
    const stopped = Promise.all([this.#condition?.stop(), this.#recorder?.stop()])
    await this.#flows?.stop()
    await this.#failOver?.stop()
    await this.#prover?.stop()
    await this.#kubeProxy?.stop()
    await this.#unanswered?.stop()
    await this.#switcher?.stop()
    await this.#servers?.close()
    await this.#cluster?.close()
    await stopped
    await this.#reach.close()
    return code
  }

  #observe(): Observer {
    const { nodeName, syncPeriodMs, featureGates, allowServiceExternalIps } = this.#config
    const gates = { ...featureGates, AllowServiceExternalIPs: allowServiceExternalIps }
    return new Observer({
      ...this.#parts,
      nodeName,
      syncPeriodMs,
      // Files may omit all Nodes. Nodes of other names show that this node's name is wrong.
      eligibleWithoutNode: () =>
        this.#config.source.kind === 'file' && (this.#intake.status?.otherNodes ?? []).length === 0,
      source: () => this.#intake.status,
      servedStaleS: () => this.#saved?.staleS,
      proofAgeS: () => this.#prover?.ageS,
      unanswered: () => this.#unanswered,
      refused: () => this.#refusedPackets.read(),
      quarantined: () => this.#activeMode?.status.quarantined.length ?? 0,
      failedFamily: () => this.#activeMode?.status.failedFamily,
      servers: () => ({ ...(this.#servers?.state ?? { ready: false }), events: this.#recorder?.counts }),
      features: Object.entries(gates).map(([name, enabled]) => ({ name, stage: '', enabled })),
      mode: () => findMode(this.#activeMode?.mode ?? this.#config.proxyMode),
      ofMode: async () => (await this.#switcher?.metrics()) ?? {},
      addMetrics: set => this.#api?.addMetrics(set),
      connections: connectionsOf(this.#config, this.#io, () => this.#activeMode),
    })
  }

  get #config(): Config {
    return this.#configuration.now
  }

  get #activeMode(): ActiveMode | undefined {
    return this.#switcher?.current
  }

  get #parts() {
    const [sockets, activeMode] = [this.#sockets, () => this.#activeMode]
    return { ...this.#io, sockets, activeMode, tell: (fact: EventFact) => this.#recorder?.record(fact) }
  }

  #program(config: Config): ModeSwitcher {
    const api = this.#api
    return new ModeSwitcher(config, {
      ...this.#parts,
      report: event => this.#report(event),
      // Back ends get more of an object than a saved state has.
      resolved: api && (its => (this.#intake.isStale(its.snapshot) ? undefined : api.offer(its))),
      confirm: () => this.#intake.confirm(),
      tell: event => this.#observer.modeEvent(event),
    })
  }

  async #connect(config: Config): Promise<void> {
    const { openClient } = this.#io
    if (openClient === undefined) throw new Error('no API client in this build; give --source=file:PATH')
    const quarantined = () => this.#activeMode?.status.quarantined ?? []
    const reported = { intake: this.#intake, quarantined, proof: () => this.#prover?.last }
    const isProgramming = !config.once && config.backend === 'netlink'
    this.#cluster = new Cluster({
      ...this.#io,
      client: await openClient(config, this.#reach),
      reported: isProgramming ? reported : undefined,
      requested: request => {
        this.#observer.metrics.apiRequest(request)
        if (request.status !== undefined) this.#saved?.answered()
      },
    })
    if (!isProgramming) return
    this.#recorder ??= recorderOf(config, this.#io, { intake: this.#intake, cluster: () => this.#cluster })
  }

  #source(config: Config): Source {
    const reading = { details: this.#api !== undefined }
    return (
      this.#cluster?.source(config, { ...reading, partsMax: partsMax(this.#io.room?.()) }) ??
      openFileSource(config, this.#io.clock, reading)
    )
  }

  #openCondition(config: Config): NodeCondition | undefined {
    return nodeConditionOf(config, {
      ...this.#io,
      health: () => this.#observer.health,
      difference: async () => await this.#activeMode?.pending(),
      quarantined: () => this.#activeMode?.status.quarantined ?? [],
      send: async question =>
        (await this.#cluster?.ask(question)) ?? { kind: 'failed', text: 'no API client' },
      metrics: this.#observer.metrics,
    })
  }

  #openKubeProxyWatch(config: Config): KubeProxyWatch | undefined {
    this.#observer.health.advise(() => this.#kubeProxy?.check)
    return kubeProxyWatchOf(config, {
      ...this.#parts,
      metrics: this.#observer.metrics,
      writesChains: () => {
        const mode = this.#activeMode?.mode ?? this.#config.proxyMode
        return findMode(mode).exclusive?.(this.#config) !== undefined
      },
      ports: () => this.#servers?.portsInUse ?? [],
    })
  }

  #openFailOver({ nodeName }: Config): FailOver | undefined {
    const { metrics } = this.#observer
    const take = (events: readonly SnapshotEvent[]) => this.#intake.takeSilent(events)
    return failOverOf(this.#io, { nodeName, metrics, take, tell: this.#parts.tell })
  }

  #openSavedState(config: Config): SavedState | undefined {
    return savedStateOf(config, {
      ...this.#io,
      owner: async () => await this.#cluster?.owner(this.#config),
      intake: this.#intake,
      mayServe: snapshot => mayServe(snapshot, { ...this.#parts, config: this.#config }, this.#activeMode),
      metrics: this.#observer.metrics,
    })
  }

  async #followIps(): Promise<void> {
    const failed = (): void => {
      this.#observer.sourceProblem()
      if (this.#config.once) this.#finish(1, '--once: cannot read the addresses of this machine')
    }
    const before = this.#localIps
    this.#localIps = followLocalIps(this.#config, this.#io, { intake: this.#intake, failed })
    await before?.stop()
  }

  /** Connects again and reads everything again. The known state stays in use until that is complete. */
  async #connectAnew(config: Config): Promise<void> {
    const old = this.#cluster
    if (old === undefined) return
    await this.#connect(config)
    await this.#intake.follow(this.#source(config))
    await old.close()
  }

  #problem(problem: SourceProblem): void {
    const { kind } = problem
    const isLast = this.#config.once && !this.#intake.complete
    this.#observer.problem(problem, isLast)
    if (kind === 'empty' && this.#config.once) {
      // An empty source may be a wrong path, and must not remove every Service.
      this.#intake.deliverTo(undefined)
      this.#finish(1, '--once: the files hold no objects')
    }
    if (kind !== 'failed') return
    this.#saved?.troubled()
    if (isLast) this.#finish(1, '--once: cannot read the source')
  }

  #report(event: ReconcilerEvent): void {
    this.#observer.report(event)
    this.#prover?.report(event)
    this.#kubeProxy?.report(event)
    this.#cluster?.takeEvent(event)
    if (event.kind === 'committed') this.#written = addWritten(this.#written, event)
    else if (event.kind === 'synced') this.#synced(event)
    else if (event.kind === 'failed' && this.#failures.failed(event.error) && this.#config.once)
      this.#finish(1, '--once: the kernel could not be programmed')
    else if (event.kind === 'repaired') this.#io.repaired?.()
  }

  #synced(event: Extract<ReconcilerEvent, { readonly kind: 'synced' }>): void {
    const status = this.#activeMode?.status
    if (status?.table === undefined || status.snapshot === undefined) return
    const { table, snapshot } = status
    const quarantined = status.quarantined.map(({ service }) => service)
    const isStale = this.#intake.isStale(snapshot)
    void this.#reach.synced({ isStale })
    if (this.#syncedTable === undefined) {
      this.#io.engine?.loaded()
      this.#cluster?.warnOfLoop(table, this.#io.log)
      logFirstSync(this.#io.log, { table, quarantined, written: this.#written }, this.#config)
    }
    this.#node.synced(table)
    this.#observer.synced(event, snapshot, table)
    this.#saved?.synced(snapshot)
    if (!isStale) this.#condition?.synced()
    this.#servers?.update(table)
    // The newest snapshot also has the endpoints of the next commit. Relayed connections end at this process.
    const mode = this.#activeMode && findMode(this.#activeMode.mode)
    if (mode?.forwards !== true) this.#flows?.offer(this.#intake.snapshot, table)
    this.#failOver?.offer(mode?.settings.failsOver === true ? { snapshot, table } : undefined)
    const [previous, written] = [this.#syncedTable, this.#written]
    this.#syncedTable = table
    this.#written = NOTHING_WRITTEN
    this.#failures.succeeded()
    if (event.readWhole) this.#intake.refresh()
    this.#io.synced({ reason: event.reason, snapshot, table, quarantined, previous, written })
    if (!this.#config.once || table.number !== this.#intake.snapshot.number) return
    const isWhole = quarantined.length === 0 && this.#activeMode?.hasUnsupported !== true
    const why = `--once: first sync complete${isWhole ? '' : ', without some Services'}`
    void this.#switcher?.retired().then(() => this.#finish(isWhole ? 0 : 1, why))
  }
}
