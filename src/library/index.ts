/**
 * The parts of a back end: sources of Services, the resolution of Services on this node, and the reconciler that keeps
 * a data plane in that state.
 */
import { atOnce, type Clock, systemClock } from '../base/clock.ts'
import { createLog, type Log } from '../base/log.ts'
import { Cluster } from '../daemon/cluster.ts'
import { Intake } from '../daemon/intake.ts'
import { systemLock } from '../daemon/network-lock.ts'
import { OnceFailures } from '../daemon/once.ts'
import { openClient, openFileSource } from '../daemon/open.ts'
import type { FrontendTable } from '../model/frontend.ts'
import type { ResolveOptions } from '../model/node-context.ts'
import { resolve } from '../model/resolve.ts'
import { applyEvents, type Snapshot, type SnapshotEvent } from '../model/snapshot.ts'
import type { Dataplane, Plan } from '../reconcile/dataplane.ts'
import type { ReconcilerEvent } from '../reconcile/pass.ts'
import { Reconciler } from '../reconcile/reconciler.ts'
import { problemText, type Source } from '../source/source.ts'
import { RefusalLog, SourceRefusalLog } from '../telemetry/refusal-log.ts'

export {
  type Cancel,
  type Clock,
  finish,
  finishInSlices,
  type Slicing,
  type Steps,
  slicingOf,
  systemClock,
} from '../base/clock.ts'
export { PersistentMap } from '../base/collections.ts'
export {
  type Cidr,
  cidrOf,
  compareIps,
  contains,
  FAMILIES,
  type Family,
  familyOf,
  formatCidr,
  formatIp,
  formatIpPort,
  hostCidr,
  type Ip,
  parseCidr,
  parseIp,
} from '../base/ip.ts'
export { createLog, type Log, type LogOptions } from '../base/log.ts'
export { bytesFromOctets, type Octets, octetsFromBytes } from '../base/octets.ts'
export type { Refusal, WatchedIdentity, WatchedKind } from '../model/fields.ts'
export type {
  Backend,
  Frontend,
  FrontendKind,
  FrontendTable,
  HealthCheck,
  NodePortAddresses,
  PortFrontends,
  Route,
  ServiceFrontends,
  WholeAddresses,
} from '../model/frontend.ts'
export type { NodePortSelection, ResolveOptions, ServiceMemory } from '../model/node-context.ts'
export { type ParseOptions, parseObject, watchedIdentity } from '../model/parse.ts'
export type { ApiEndpoint, ServiceListeners, TakenPort } from '../model/reserved.ts'
export { type Memo, type Resolved, resolve } from '../model/resolve.ts'
export type {
  CostRates,
  Endpoint,
  EndpointConditions,
  EndpointHints,
  EndpointPort,
  EndpointSlice,
  EndpointTraits,
  Headless,
  Protocol,
  Service,
  ServiceDetails,
  ServiceKey,
  ServicePortSpec,
  SliceList,
  TrafficPolicy,
} from '../model/service.ts'
export {
  applyEvents,
  EMPTY_SNAPSHOT,
  type NodeInfo,
  type Snapshot,
  type SnapshotEvent,
  type SourceEvent,
  ValuePool,
} from '../model/snapshot.ts'
export {
  type CommitOptions,
  commitsBetween,
  counterOf,
  type Dataplane,
  type DryRunOptions,
  dryRun,
  type Generation,
  type GenerationWatch,
  generationOf,
  type KernelRefusal,
  type Observation,
  type ObserveOptions,
  type Plan,
  type PlanLine,
  type Receipt,
  type RenderOptions,
  type WriterCommit,
} from '../reconcile/dataplane.ts'
export type { PassReason, ReconcilerEvent } from '../reconcile/pass.ts'
export type { FailedFamily, QuarantineEntry } from '../reconcile/quarantine.ts'
export {
  type Held,
  Reconciler,
  type ReconcilerOptions,
  type ReconcilerStatus,
} from '../reconcile/reconciler.ts'
export type {
  LocatedRefusal,
  Source,
  SourceHandlers,
  SourceObservation,
  SourceProblem,
  SourceStatus,
} from '../source/source.ts'

/** Does the work of applyEvents(), to be run with `finish` or `finishInSlices`. */
export function applyEventsInSteps(snapshot: Snapshot, events: Iterable<SnapshotEvent>) {
  return atOnce(() => applyEvents(snapshot, events))
}

export interface RunDataplaneOptions<State, P extends Plan<State>> {
  readonly source: Source
  readonly plane: Dataplane<State, P>
  /** Name of this node's Node object. */
  readonly nodeName: string
  /**
   * Serve the Services with this value in service.kubernetes.io/service-proxy-name; if unset, those without the label.
   */
  readonly serviceProxyName?: string | undefined
  /** Further options of the resolution; see DEFAULT_RESOLVE_OPTIONS. */
  readonly resolving?: Partial<ResolveOptions>
  /** Aborting it ends the run. If unset, SIGINT and SIGTERM end it. */
  readonly signal?: AbortSignal
  /** The log; text lines on standard error by default. */
  readonly log?: Log
  readonly clock?: Clock
  /** Minimum time between two commits, milliseconds; 1000 by default. */
  readonly minIntervalMs?: number
  /** Maximum interval between full resyncs, milliseconds; 30,000 by default. */
  readonly healPeriodMs?: number
  /** Interval of the polls of the generation, milliseconds; 0 for never, 100 by default. */
  readonly driftPollMs?: number
  /** End after the first sync. Three passes that fail before it, or a lack of privilege, reject. */
  readonly once?: boolean
  /** Gets the events of the reconciler, besides the log. */
  readonly report?: (event: ReconcilerEvent) => void
}

/** Options of the unnamed proxy, with node ports at every address and every external IP allowed. */
export const DEFAULT_RESOLVE_OPTIONS: Omit<ResolveOptions, 'nodeName'> = {
  serviceProxyName: undefined,
  nodePortSelection: { primary: false, cidrs: [] },
  allowedExternalCidrs: [],
  allowedLoadBalancerCidrs: [],
  allowServiceExternalIps: true,
  bindAddress: undefined,
}

const MIN_INTERVAL_MS = 1_000
const HEAL_PERIOD_MS = 30_000
const DRIFT_POLL_MS = 100

/**
 * Keeps a data plane in the state that a source wants: source, Snapshot, resolve, Reconciler. It commits nothing before
 * the source has delivered everything once, and repairs drift. The state stays in the kernel at the end. Resolves when
 * the run ends. Rejects if the source cannot start, or if another process of this network namespace runs a plane of the
 * same name.
 */
export async function runDataplane<State, P extends Plan<State>>(
  options: RunDataplaneOptions<State, P>,
): Promise<void> {
  const { plane, clock = systemClock } = options
  const takeLock = systemLock(clock, Math.random)
  const lock = await takeLock(`kprobe/plane/${plane.name}`, `pid ${process.pid}`)
  if (lock.kind === 'busy')
    throw new Error(`another process (${lock.holder || 'no answer'}) runs the plane ${plane.name}`)
  try {
    await new Run(options).untilEnd()
  } finally {
    await lock.release()
  }
}

class Run<State, P extends Plan<State>> {
  readonly #options: RunDataplaneOptions<State, P>
  readonly #log: Log
  readonly #reconciler: Reconciler<State, P>
  readonly #intake: Intake
  readonly #refusals = new RefusalLog()
  readonly #sourceRefusals = new SourceRefusalLog()
  readonly #done: Promise<void>
  #end: (error?: Error) => void = () => undefined
  readonly #failures = new OnceFailures()

  constructor(options: RunDataplaneOptions<State, P>) {
    this.#options = options
    const { plane, nodeName, serviceProxyName, resolving, clock = systemClock } = options
    this.#log = options.log ?? createLog({ format: 'text', verbosity: 0 })
    this.#done = new Promise((fulfil, reject) => {
      this.#end = error => (error === undefined ? fulfil() : reject(error))
    })
    const point = {
      ...DEFAULT_RESOLVE_OPTIONS,
      serviceProxyName,
      ...resolving,
      nodeName: nodeName.toLowerCase(),
    }
    this.#reconciler = new Reconciler({
      plane,
      resolve: (previous, snapshot) => resolve(point, previous, snapshot),
      clock,
      random: Math.random,
      minIntervalMs: options.minIntervalMs ?? MIN_INTERVAL_MS,
      healPeriodMs: options.healPeriodMs ?? HEAL_PERIOD_MS,
      driftPollMs: options.driftPollMs ?? DRIFT_POLL_MS,
      report: event => this.#report(event),
    })
    this.#intake = new Intake({
      keepsNode: true,
      handlers: {
        refusals: list => this.#logSourceRefusals(list),
        problem: problem => {
          const { kind, location } = problem
          this.#log[kind === 'recovered' ? 'info' : 'warn']({ location }, problemText(problem))
        },
      },
    })
    this.#intake.deliverTo(this.#reconciler)
  }

  async untilEnd(): Promise<void> {
    const unlisten = this.#listen()
    try {
      await this.#intake.follow(this.#options.source)
      await this.#done
    } finally {
      unlisten()
      await this.#intake.stop()
      await this.#reconciler.stop()
    }
  }

  #listen(): () => void {
    const end = () => this.#end()
    const { signal } = this.#options
    if (signal !== undefined) {
      signal.addEventListener('abort', end, { once: true })
      if (signal.aborted) end()
      return () => signal.removeEventListener('abort', end)
    }
    for (const name of SIGNALS) process.on(name, end)
    return () => {
      for (const name of SIGNALS) process.off(name, end)
    }
  }

  #report(event: ReconcilerEvent): void {
    this.#options.report?.(event)
    const { table } = this.#reconciler.status
    switch (event.kind) {
      case 'synced':
        if (table !== undefined) this.#synced(event, table)
        break
      case 'failed':
        this.#failed(event)
        break
      case 'healed':
        this.#log.warn(
          { changes: event.changes, objects: event.objects },
          'repaired changes of another program',
        )
        break
      case 'quarantined':
        this.#log.warn(
          { service: event.service, err: event.error, retryMs: event.retryMs },
          'the kernel rejects the Service; skipped and retried',
        )
        break
      case 'released':
        this.#log.info({ service: event.service }, 'the kernel accepts the Service again')
        break
      default:
        this.#log.debug(event, 'reconciling')
    }
  }

  #synced(
    { number, reason, durationMs }: Extract<ReconcilerEvent, { readonly kind: 'synced' }>,
    table: FrontendTable,
  ): void {
    this.#failures.succeeded()
    const facts = { number, reason, services: table.services.size, durationMs: Math.round(durationMs) }
    if (reason === 'start') this.#log.info(facts, 'sync complete')
    else this.#log.debug(facts, 'sync complete')
    const { fresh, unnamed } = this.#refusals.update(table)
    for (const { refusals } of fresh) for (const refusal of refusals) this.#log.warn(refusal, 'refused')
    if (unnamed > 0) this.#log.warn({ unnamed }, 'more fields or objects ignored')
    if (this.#options.once === true) this.#end()
  }

  #failed({ error, retryMs }: Extract<ReconcilerEvent, { readonly kind: 'failed' }>): void {
    this.#log.error({ err: error, retryMs }, 'sync failed; retrying')
    if (this.#failures.failed(error) && this.#options.once === true) this.#end(error)
  }

  #logSourceRefusals(list: Parameters<SourceRefusalLog['update']>[0]): void {
    const { fresh, unnamed } = this.#sourceRefusals.update(list)
    for (const { location, refusal } of fresh) this.#log.warn({ location, ...refusal }, 'refused')
    if (unnamed > 0) this.#log.warn({ unnamed }, 'more fields or objects ignored')
  }
}

const SIGNALS = ['SIGINT', 'SIGTERM'] as const

export interface FileSourceOptions {
  /** A file, or a folder of *.yaml, *.yml and *.json: objects of kind Service, EndpointSlice, ServiceCIDR and Node. */
  readonly path: string
  /** The source delivers only the Node of this name. */
  readonly nodeName: string
  /** The option of the same name in runDataplane. */
  readonly serviceProxyName?: string | undefined
  readonly clock?: Clock
}

/** Makes a source of Services from files, and follows these. An invalid or missing file keeps its last valid content in use. */
export function fileSource(options: FileSourceOptions): Source {
  const { path, nodeName, serviceProxyName, clock = systemClock } = options
  const source = { kind: 'file', path } as const
  return openFileSource({ source, nodeName: nodeName.toLowerCase(), serviceProxyName }, clock)
}

export interface KubeSourceOptions {
  /** Path of a kubeconfig; if unset, the credentials of the pod of this process. */
  readonly kubeconfig?: string
  /** URL that replaces the kubeconfig's server. */
  readonly master?: string
  /** The source watches only the Node of this name. */
  readonly nodeName: string
  /** Selects Services with this value of service.kubernetes.io/service-proxy-name; if unset, those without it. */
  readonly serviceProxyName?: string | undefined
  /** Requests per second on average, 0 for no limit; `burst` is the number at once after an idle time. */
  readonly qps?: number
  readonly burst?: number
  /** Gets messages for operators, one sentence at a time; they contain no secret. */
  readonly warn?: (text: string) => void
  readonly clock?: Clock
}

/** The defaults of kube-proxy's clientConnection. */
const CLIENT = {
  contentType: 'application/vnd.kubernetes.protobuf',
  acceptContentTypes: '',
  qps: 5,
  burst: 10,
} as const

/**
 * Makes a source of Services, EndpointSlices, ServiceCIDRs and this Node from the API server: it lists, then watches.
 * An outage changes nothing. `start` throws ApiError 'credentials' if the kubeconfig cannot be used.
 */
export function kubeSource(options: KubeSourceOptions): Source {
  const {
    clock = systemClock,
    kubeconfig = '',
    master = '',
    serviceProxyName,
    warn = () => undefined,
  } = options
  const { qps = CLIENT.qps, burst = CLIENT.burst } = options
  const client = { ...CLIENT, kubeconfig, master, qps, burst }
  const nodeName = options.nodeName.toLowerCase()
  let cluster: Cluster | undefined
  let source: Source | undefined
  return {
    async start(handlers) {
      const opened = await openClient({ client }, { clock, env: process.env, warn })
      cluster = new Cluster({ client: opened, clock, random: Math.random, requested: () => undefined })
      source = cluster.source({ nodeName, serviceProxyName, client })
      await source.start(handlers)
    },
    async stop() {
      await source?.stop()
      await cluster?.close()
    },
    get status() {
      return source?.status ?? { missing: ['a connection'], heardMs: undefined, trouble: undefined }
    },
  }
}
