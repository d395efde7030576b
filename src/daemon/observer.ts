import type { Clock } from '../base/clock.ts'
import { privilegeHint } from '../base/errors.ts'
import { FAMILIES, familyOf } from '../base/ip.ts'
import type { Log } from '../base/log.ts'
import { rfc3339 } from '../base/text.ts'
import type { FrontendTable } from '../model/frontend.ts'
import type { NodeInfo, Snapshot } from '../model/snapshot.ts'
import type { Mode, ModeEvent } from '../modes/mode.ts'
import type { ReconcilerEvent } from '../reconcile/pass.ts'
import type { FailedFamily } from '../reconcile/quarantine.ts'
import {
  type LocatedRefusal,
  problemText,
  type SourceObservation,
  type SourceProblem,
  type SourceStatus,
} from '../source/source.ts'
import { Receipts } from '../telemetry/admin-server.ts'
import {
  type EventFact,
  serviceQuarantined,
  serviceRefused,
  serviceReleased,
  starting,
} from '../telemetry/event.ts'
import { HealthTracker } from '../telemetry/health.ts'
import { createMetrics, type Metrics, type MetricsOptions } from '../telemetry/metrics.ts'
import {
  countOffer,
  countSync,
  LocalPolicyCounter,
  PendingChanges,
  programmingLatencies,
  setPending,
} from '../telemetry/proxy-metrics.ts'
import { RefusalLog, SourceRefusalLog } from '../telemetry/refusal-log.ts'

interface ObserverOptions extends Omit<MetricsOptions, 'staleS' | 'isDirect'> {
  readonly log: Log
  readonly clock: Clock
  readonly wallMs: () => number
  readonly nodeName: string
  readonly syncPeriodMs: number
  readonly source: () => SourceStatus | undefined
  readonly quarantined: () => number
  readonly failedFamily: () => FailedFamily | undefined
  /** Load balancers may use this node while its Node object is unknown. */
  readonly eligibleWithoutNode: () => boolean
  readonly mode: () => Pick<Mode, 'countsFailures'>
  readonly tell: (fact: EventFact) => void
}

/** Passes since the start that removed changes of other programs, and the objects that they repaired. */
interface Repairs {
  readonly passes: number
  readonly objects: number
  readonly lastAt?: string
  /** Those of the last hour, at most RECENT_MAX, the oldest first. */
  readonly recent: readonly Repair[]
}

interface Repair {
  /** RFC 3339. */
  readonly at: string
  readonly objects: number
  /** The last process that may have done it: its name and id; undefined where the kernel did not name one. */
  readonly process: string | undefined
}

const RECENT_MAX = 100
const RECENT_MS = 3_600_000

const FURTHER = 'more fields or objects ignored; `kprobe plan` lists them'

const FAMILY_FAILED =
  'the kernel rejects the rules of this IP family; the other family is served; retrying; `kprobe doctor` lists what the kernel lacks'

type EventOf<Kind extends ReconcilerEvent['kind']> = Extract<ReconcilerEvent, { readonly kind: Kind }>

/** Turns what happens into logs, metrics, health and events. Makes no decisions. */
export class Observer {
  readonly metrics: Metrics
  readonly receipts: Receipts
  readonly startedWallMs: number
  readonly #options: ObserverOptions
  readonly #refusals: RefusalLog
  readonly #sourceRefusals = new SourceRefusalLog()
  #repairs: Repairs = { passes: 0, objects: 0, recent: [] }
  /** The last process that may have changed kprobe's tables, until a pass that began later has read them. */
  #intruder: { readonly process: string | undefined; readonly atMs: number } | undefined
  /** Refusals of Services, and those of objects that belong to no Service. */
  #refused = { services: 0, objects: 0 }
  #heardMs: number
  readonly health: HealthTracker
  readonly #pending = new PendingChanges()
  readonly #localPolicies = new LocalPolicyCounter()
  #programmed: Snapshot | undefined

  constructor(options: ObserverOptions) {
    const { clock, wallMs, source } = options
    this.#options = options
    this.#refusals = new RefusalLog(wallMs)
    this.startedWallMs = wallMs()
    this.health = new HealthTracker(options)
    this.receipts = new Receipts(wallMs)
    this.#heardMs = clock.nowMs()
    // The staleness of a source without data counts from the start, and that of a new source from the last data of the
    // previous one.
    const staleS = () => {
      this.#heardMs = source()?.heardMs ?? this.#heardMs
      return (clock.nowMs() - this.#heardMs) / 1000
    }
    this.metrics = createMetrics({ ...options, staleS, isDirect: () => source()?.isDirect })
  }

  refusedSince(): ReturnType<RefusalLog['since']> {
    return this.#refusals.since()
  }

  get repairs(): Repairs {
    const fromMs = this.#options.wallMs() - RECENT_MS
    return { ...this.#repairs, recent: this.#repairs.recent.filter(({ at }) => Date.parse(at) >= fromMs) }
  }

  get nodeName(): string {
    return this.#options.nodeName
  }

  modeEvent(event: ModeEvent): void {
    const { log } = this.#options
    switch (event.kind) {
      case 'drained':
      case 'expired': {
        const { kind, ...facts } = event
        this.metrics.kprobe_drained_endpoints_total.inc({ outcome: kind })
        this.metrics.kprobe_drain_cut_connections_total.inc(event.connections)
        if (kind === 'drained') log.debug(facts, 'removed endpoint after its last connection')
        else log.info(facts, 'removed endpoint with open connections; the drain timeout is over')
        break
      }
      case 'drift':
        log.debug({ difference: event.difference }, 'kernel state drifted')
        break
      case 'failed':
        log.warn({ err: event.error }, 'upkeep between commits failed; retrying')
        break
      case 'notice':
        log[event.level](event.facts, event.text)
        break
    }
  }

  observed(observation: SourceObservation): void {
    this.metrics.observed(observation)
    logObservation(this.#options.log, observation)
  }

  /** Logs a problem of the source, which does not try again if `isLast`. */
  problem(problem: SourceProblem, isLast: boolean): void {
    const { kind, location } = problem
    const text = isLast ? problem.text : problemText(problem)
    this.#options.log[kind === 'recovered' ? 'info' : 'warn']({ location }, text)
    if (kind === 'failed') this.sourceProblem()
  }

  sourceProblem(): void {
    this.metrics.kprobe_source_problems_total.inc()
  }

  configChanged(result: 'applied' | 'refused'): void {
    this.metrics.kprobe_config_changes_total.inc({ result })
  }

  /** Takes the complete list of the source's refusals. */
  refused(list: readonly LocatedRefusal[]): void {
    const { log } = this.#options
    const { fresh, unnamed, total } = this.#sourceRefusals.update(list)
    for (const { location, refusal } of fresh) log.warn({ location, ...refusal }, 'refused')
    if (unnamed > 0) log.warn({ more: unnamed }, FURTHER)
    this.#tellRefused({ objects: total })
  }

  #tellRefused(news: { readonly services?: number; readonly objects?: number }): void {
    this.#refused = { ...this.#refused, ...news }
    this.metrics.kprobe_refusals.set(this.#refused.services + this.#refused.objects)
  }

  /** Takes a Snapshot that is to be programmed. */
  offered(snapshot: Snapshot): void {
    countOffer(this.metrics, this.#pending.offered(snapshot), this.#options.wallMs())
    this.health.queued(snapshot.number)
    setPending(this.metrics, this.#pending.now)
  }

  /** Takes the Node of the Snapshots from the next one on. */
  node(node: NodeInfo | undefined): void {
    this.health.node(node?.eligible, node?.deleted, node?.ips.map(familyOf))
    this.metrics.kprobe_node_known.set(Number(node !== undefined && node.deleted !== true))
  }

  report(event: ReconcilerEvent): void {
    const { log } = this.#options
    switch (event.kind) {
      case 'committed':
        this.#committed(event)
        break
      case 'synced':
        break
      case 'repaired':
        this.#repaired(event)
        break
      case 'foreign-commit':
        this.metrics.kprobe_foreign_commits_total.inc()
        if (event.damage) this.metrics.kprobe_drift_found_total.inc()
        if (event.damage) this.#intruder = { process: event.process, atMs: this.#options.clock.nowMs() }
        log.debug(
          { generation: event.generation, process: event.process },
          'another process changed nf_tables',
        )
        break
      case 'stale':
        this.metrics.kprobe_commit_generation_retries_total.inc()
        log.debug({ attempt: event.attempt }, 'another process committed first; planning again')
        break
      case 'quarantined':
        this.#quarantined(event)
        break
      case 'released':
        this.metrics.kprobe_quarantined_services.set(this.#options.quarantined())
        this.#options.tell(serviceReleased(event.service, this.#options.nodeName))
        log.info({ service: event.service }, 'the kernel accepts a Service that it rejected before')
        break
      case 'family-failed': {
        // Once, until the family is restored.
        const { family, error, retryMs, failures } = event
        const facts = { family, err: error, retryMs: Math.round(retryMs) }
        log[failures === 1 ? 'error' : 'debug'](facts, FAMILY_FAILED)
        break
      }
      case 'family-restored':
        log.info({ family: event.family }, 'the kernel accepts this IP family again')
        break
      case 'failed':
        this.#failed(event)
        break
    }
  }

  /** Takes a sync: the kernel holds `table`, which is the resolved Snapshot. */
  synced(event: EventOf<'synced'>, snapshot: Snapshot, table: FrontendTable): void {
    const { clock, wallMs, nodeName, tell } = this.#options
    const { metrics } = this
    const nowWallMs = wallMs()
    if (this.#programmed === undefined) tell(starting(nodeName))
    const beganMs = clock.nowMs() - event.durationMs
    // What this process may have changed is repaired, or was none of ours.
    if (event.readWhole && this.#intruder !== undefined && this.#intruder.atMs < beganMs)
      this.#intruder = undefined
    const failed = this.#options.failedFamily()?.family
    for (const ip_family of FAMILIES)
      metrics.kprobe_family_programmed.set({ ip_family }, Number(ip_family !== failed))
    const noLocal = this.#localPolicies.update(table)
    countSync(metrics, { full: event.readWhole, durationMs: event.durationMs, wallMs: nowWallMs, noLocal })
    const times = { startedWallMs: this.startedWallMs, nowWallMs }
    for (const { family, latencyMs } of programmingLatencies(this.#programmed, snapshot, times))
      metrics.kubeproxy_network_programming_duration_seconds.observe({ ip_family: family }, latencyMs / 1000)
    this.#programmed = snapshot
    this.#pending.synced(snapshot)
    setPending(metrics, this.#pending.now)
    metrics.kprobe_services.set(table.services.size)
    this.health.synced(event.number)
    this.#logRefusals(table)
  }

  #logRefusals(table: FrontendTable): void {
    const { log, tell } = this.#options
    const news = this.#refusals.update(table)
    this.#tellRefused({ services: news.total })
    for (const { service, refusals } of news.fresh) {
      for (const refusal of refusals) log.warn(refusal, 'refused')
      tell(serviceRefused(service, refusals))
    }
    if (news.unnamed > 0) log.warn({ more: news.unnamed }, FURTHER)
  }

  #committed({ plan, receipt, reason }: EventOf<'committed'>): void {
    const { changes } = plan
    const { bytes, durationMs, generation } = receipt
    const { metrics } = this
    metrics.kprobe_commits_total.inc()
    metrics.kprobe_commit_bytes_total.inc(bytes)
    metrics.kprobe_commit_changes_total.inc(changes)
    const exemplarLabels = { generation: String(generation) }
    metrics.kprobe_commit_duration_seconds.observe({ labels: {}, value: durationMs / 1000, exemplarLabels })
    this.receipts.add(reason, changes, receipt)
    this.#options.log.debug({ reason, changes, bytes, durationMs: Math.round(durationMs) }, 'committed')
  }

  #repaired({ changes, objects }: EventOf<'repaired'>): void {
    const { passes, objects: before, recent } = this.#repairs
    const lastAt = rfc3339(this.#options.wallMs())
    const process = this.#intruder?.process
    const repair = { at: lastAt, objects: changes, process }
    this.#repairs = {
      passes: passes + 1,
      objects: before + changes,
      lastAt,
      recent: [...recent, repair].slice(-RECENT_MAX),
    }
    this.metrics.kprobe_heals_total.inc()
    this.metrics.kprobe_healed_objects_total.inc(changes)
    const facts = { ...(process === undefined ? {} : { process }), changes, objects }
    this.#options.log.warn(facts, "repaired foreign changes to kprobe's tables")
  }

  #quarantined({ service, error, retryMs }: EventOf<'quarantined'>): void {
    const { log, quarantined, nodeName, tell } = this.#options
    this.metrics.kprobe_quarantined_services.set(quarantined())
    tell(serviceQuarantined(service, nodeName, error))
    const facts = { service, err: error, retryMs: Math.round(retryMs) }
    log.error(facts, 'the kernel rejects a Service; all others are served')
  }

  #failed({ error, retryMs }: EventOf<'failed'>): void {
    this.metrics.kprobe_failed_passes_total.inc()
    if (this.#options.mode().countsFailures !== true)
      for (const ip_family of FAMILIES)
        this.metrics.kubeproxy_sync_proxy_rules_nftables_sync_failures_total.inc({ ip_family })
    this.health.failed()
    const hint = privilegeHint(error)
    const facts = { err: error, retryMs: Math.round(retryMs), ...(hint === undefined ? {} : { hint }) }
    this.#options.log.error(facts, 'sync failed; retrying; the kernel keeps the last state')
  }
}

const OBSERVED: Readonly<Record<SourceObservation['kind'], string>> = {
  listed: 'list complete',
  'watch-ended': 'watch ended',
  skipped: 'event or object skipped',
  repaired: 'consistency check found objects that no event had changed',
}

function logObservation(log: Log, { kind, ...facts }: SourceObservation): void {
  const rounded = 'durationMs' in facts ? { durationMs: Math.round(facts.durationMs) } : {}
  log.debug({ ...facts, ...rounded }, OBSERVED[kind])
}
