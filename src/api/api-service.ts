import { type Clock, finishInSlices, slicingOf } from '../base/clock.ts'
import type { Log } from '../base/log.ts'
import { Newest } from '../base/queues.ts'
import { type Crowd, NONE_OVER_SHARE, type OverShare } from '../base/shares.ts'
import type { Config } from '../config/config.ts'
import { Cluster } from '../daemon/cluster.ts'
import { Intake } from '../daemon/intake.ts'
import { IntakeLog, logProblem } from '../daemon/intake-log.ts'
import { openFileSource } from '../daemon/open.ts'
import type { DaemonApi, DaemonApiOptions } from '../daemon/optional-parts.ts'
import { partsMax, processRoom, servicesBytes } from '../daemon/process-room.ts'
import { logCrowd } from '../daemon/servers.ts'
import { type Resolved, resolve } from '../model/resolve.ts'
import type { Snapshot } from '../model/snapshot.ts'
import { resolveOptions } from '../modes/resolve-options.ts'
import type { ApiClient } from '../source/kube/api-client.ts'
import type { SourceProblem } from '../source/source.ts'
import type { MetricSet } from '../telemetry/metric-set.ts'
import { ApiFeed } from './feed.ts'
import { type ApiServer, startApiServer } from './grpc/server.ts'
import { API } from './metrics.ts'
import { type ApiProjection, nextApiState, type ResolvedView } from './next-state.ts'

/** The back-end API of a daemon. It serves resolved state, from the first complete one on. */
export class ApiService implements DaemonApi {
  readonly #options: DaemonApiOptions
  readonly #publisher: ApiPublisher
  #server: ApiServer | undefined

  constructor(options: DaemonApiOptions) {
    this.#options = options
    this.#publisher = new ApiPublisher(options)
  }

  /** Listens. Gives false after a failure, which it logs. */
  async listen(): Promise<boolean> {
    const { clock, log, nodeName, config, connectionsMax } = this.#options
    const failed = (err: Error) => log.warn({ err }, 'API server error')
    const crowded = (crowd: Crowd) => logCrowd(log, 'api', crowd)
    try {
      const { feed } = this.#publisher
      const serving = { feed, nodeName, clock, connectionsMax, failed, crowded }
      this.#server = await startApiServer({ ...config, ...serving })
    } catch (err) {
      log.fatal(
        { err, address: config.address },
        'cannot serve the back-end API; change the address with --api',
      )
      return false
    }
    log.info({ address: this.#server.address }, 'back-end API listening')
    return true
  }

  offer(resolved: ResolvedView): void {
    this.#publisher.offer(resolved)
  }

  addMetrics(set: MetricSet): void {
    set.add(API, () => ({ ...this.#publisher.feed.status(), ...this.#server?.counts() }))
  }

  get overShare(): OverShare {
    return this.#server?.overShare ?? NONE_OVER_SHARE
  }

  async close(): Promise<void> {
    await this.#server?.close()
    await this.#publisher.settled()
  }
}

type ApiPublisherOptions = Pick<DaemonApiOptions, 'clock' | 'log' | 'source'>

/**
 * Computes the API state from resolved Snapshots and publishes it. Of several Snapshots that arrive during a
 * computation, it uses only the last.
 */
export class ApiPublisher {
  readonly feed: ApiFeed
  readonly #options: ApiPublisherOptions
  readonly #newest = new Newest<ResolvedView>(next => this.#publish(next))
  #projection: ApiProjection | undefined

  constructor(options: ApiPublisherOptions) {
    this.#options = options
    this.feed = new ApiFeed({ clock: options.clock, source: options.source })
  }

  offer(resolved: ResolvedView): void {
    this.#newest.offer(resolved)
  }

  /** Resolves when all offered states are published. */
  settled(): Promise<void> {
    return this.#newest.settled()
  }

  /** The last state stays published after an internal error. */
  async #publish(next: ResolvedView): Promise<void> {
    const { clock, log } = this.#options
    try {
      this.#projection = await nextApiState(this.#projection, next, slicingOf(clock))
      this.feed.offer(this.#projection.state)
    } catch (err) {
      log.error({ err }, 'cannot compute the API state; keeping the last one')
    }
  }
}

interface ApiNodeOptions {
  readonly config: Config
  readonly clock: Clock
  readonly random: () => number
  readonly log: Log
  /** Connects to the configured API server, for --source=kube. */
  readonly openClient: (config: Config) => Promise<ApiClient>
  /** Ends the process, because the source cannot be read and no state is known yet; absent: the source retries. */
  readonly blind?: (problem: string) => void
}

/**
 * Publishes this node's state for back ends: source, Snapshot, resolve, feed. It uses no kernel, and needs no
 * privileges.
 */
export class ApiNode {
  readonly #options: ApiNodeOptions
  readonly #intake: Intake
  readonly #publisher: ApiPublisher
  readonly #refusals: IntakeLog
  #cluster: Cluster | undefined
  readonly #newest = new Newest<Snapshot>(next => this.#resolve(next))
  #resolved: Resolved | undefined

  constructor(options: ApiNodeOptions) {
    this.#options = options
    const { clock, log, config } = options
    this.#refusals = new IntakeLog(log)
    this.#publisher = new ApiPublisher({
      clock,
      log,
      source: () => this.#intake.status,
    })
    this.#intake = new Intake({
      keepsNode: config.source.kind === 'kube',
      handlers: {
        refusals: list => this.#refusals.source(list),
        problem: problem => this.#tellProblem(problem),
      },
    })
    this.#intake.deliverTo(this.#newest)
  }

  /** The feed is empty until the source has delivered everything once; then it has the newest state. */
  get feed(): ApiFeed {
    return this.#publisher.feed
  }

  /** Rejects if the API client cannot be created, or the files cannot be watched. */
  async start(): Promise<void> {
    const { config, clock, random, openClient } = this.#options
    if (config.source.kind === 'kube') {
      const client = await openClient(config)
      this.#cluster = new Cluster({ client, clock, random, requested: () => undefined })
    }
    const reading = { ...DETAILED, partsMax: partsMax(processRoom()) }
    const source = this.#cluster?.source(config, reading) ?? openFileSource(config, clock, DETAILED)
    await this.#intake.follow(source)
  }

  async stop(): Promise<void> {
    await this.#intake.stop()
    this.#newest.drop()
    await this.#newest.settled()
    await this.#publisher.settled()
    await this.#cluster?.close()
  }

  async #resolve(snapshot: Snapshot): Promise<void> {
    const { config, clock, log } = this.#options
    try {
      const steps = resolve(resolveOptions(config, servicesBytes(processRoom())), this.#resolved, snapshot)
      this.#resolved = await finishInSlices(steps, slicingOf(clock))
      this.#publisher.offer(this.#resolved)
      this.#refusals.services(this.#resolved.table)
    } catch (err) {
      log.error({ err }, 'cannot resolve Services; keeping the last state')
    }
  }

  #tellProblem(problem: SourceProblem): void {
    const { log, blind } = this.#options
    const { kind, location, text } = problem
    const isBlind = (kind === 'failed' || kind === 'empty') && this.feed.current === undefined
    if (blind === undefined || !isBlind) {
      logProblem(log, problem)
      return
    }
    log.warn({ location }, text)
    blind(`${location}: ${text}`)
  }
}

const DETAILED = { details: true } as const
