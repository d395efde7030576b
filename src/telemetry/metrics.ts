import type { BuildInfo } from '../base/build-info.ts'
import type { Family } from '../base/ip.ts'
import type { SourceObservation } from '../source/source.ts'
import { addConnectionMetrics, type ConnectionMetricsOptions } from './connection-metrics.ts'
import {
  LabelValues,
  type MetricsFormat,
  type ModeMetric,
  ModeMetrics,
  metricSet,
  Registry,
} from './metric-set.ts'
import {
  type ApiNumbers,
  addApiMetrics,
  addProcessMetrics,
  addServerMetrics,
  type ComponentMetrics,
  createComponentMetrics,
  type FeatureState,
  type ServersState,
} from './process-metrics.ts'
import { createProxyMetrics, type ProxyMetrics } from './proxy-metrics.ts'

/** The metrics of the daemon. The daemon reports values as they change; a scrape reads the others. */
export interface Metrics
  extends ReturnType<typeof createWorkMetrics>,
    ReturnType<typeof createSourceMetrics>,
    ReturnType<typeof createConntrackMetrics>,
    ComponentMetrics {
  readonly proxy: ProxyMetrics
  readonly savedState: ReturnType<typeof createSavedStateMetrics>
  readonly nodeCondition: ReturnType<typeof createNodeConditionMetrics>
  readonly proof: ReturnType<typeof createProofMetrics>
  /** Gives all metrics in Prometheus' text format. */
  text(format?: MetricsFormat): Promise<string>
}

export interface MetricsOptions {
  readonly build: BuildInfo
  readonly features: readonly FeatureState[]
  /** Seconds since the last message of the source. */
  readonly staleS: () => number | undefined
  /** Tests whether a source of relays reads from the API server; undefined for other sources. */
  readonly isDirect: () => boolean | undefined
  readonly servers: () => ServersState
  /** New connections by Service and endpoint; undefined omits them. */
  readonly connections: ConnectionMetricsOptions | undefined
  readonly ofMode: () => Promise<readonly ModeMetric[]>
  /** Numbers of the back-end API; undefined omits its metrics. */
  readonly api: (() => ApiNumbers) | undefined
}

const NOTHING: MetricsOptions = {
  build: { version: '0.0.0', commit: '', date: '' },
  features: [],
  staleS: () => undefined,
  isDirect: () => undefined,
  servers: () => ({ ready: false }),
  connections: undefined,
  ofMode: () => Promise.resolve([]),
  api: undefined,
}

export function createMetrics(options: Partial<MetricsOptions> = {}): Metrics {
  const all = { ...NOTHING, ...options }
  const { build, features, servers, connections, ofMode, api } = all
  const registry = new Registry()
  addProcessMetrics(registry)
  if (connections !== undefined) addConnectionMetrics(registry, connections)
  addServerMetrics(registry, servers)
  if (api !== undefined) addApiMetrics(registry, api)
  const modeMetrics = new ModeMetrics(registry)
  return {
    ...createWorkMetrics(registry),
    ...createConntrackMetrics(registry),
    ...createSourceMetrics(registry, all),
    ...createComponentMetrics(registry, build, features),
    proxy: createProxyMetrics(registry),
    savedState: createSavedStateMetrics(registry),
    nodeCondition: createNodeConditionMetrics(registry),
    proof: createProofMetrics(registry),
    text: async format => {
      modeMetrics.take(await ofMode())
      return await registry.text(format)
    },
  }
}

function createWorkMetrics(registry: Registry) {
  const { counter, gauge } = metricSet(registry, 'kprobe_')
  const stale = counter(
    'commit_generation_retries_total',
    'Commits that the kernel rejected because another program committed first.',
  )
  const failed = counter('failed_passes_total', 'Syncs that failed and were retried.')
  const inQuarantine = gauge('quarantined_services', 'Services that the kernel rejects now.')
  const programmed = gauge(
    'family_programmed',
    'Whether the kernel accepts the rules of this IP family: 1 or 0.',
    ['ip_family'],
  )
  const refused = gauge(
    'refusals',
    'Fields and objects of the source that kprobe ignores now: invalid, not allowed, too large, or without room in memory (500 of each kind at most).',
  )
  const served = gauge('services', 'Services in the kernel.')
  const node = gauge('node_known', 'Whether the Node object of this machine was found: 1 or 0.')
  const flows = counter('conntrack_failures_total', 'Failed passes over the connection-tracking table.', [
    'ip_family',
  ])
  const listeners = counter(
    'listener_lookups_failed_total',
    'Failed checks of external addresses against the listening sockets of this node.',
  )
  const configs = counter('config_changes_total', 'Configuration changes by result.', ['result'])
  return {
    ...commitMetrics(registry),
    ...driftMetrics(registry),
    ...drainMetrics(registry),
    /** Another program committed before a commit, which is planned again. */
    staleCommit: () => stale.inc(),
    failedPass: () => failed.inc(),
    quarantined: (services: number) => inQuarantine.set(services),
    familyProgrammed: (family: Family, isProgrammed: boolean) =>
      programmed.set({ ip_family: family }, isProgrammed ? 1 : 0),
    refusals: (now: number) => refused.set(now),
    services: (now: number) => served.set(now),
    nodeKnown: (isKnown: boolean) => node.set(isKnown ? 1 : 0),
    listenersFailed: () => listeners.inc(),
    conntrackFailed: (family: Family) => flows.inc({ ip_family: family }),
    configChanged: (result: 'applied' | 'refused') => configs.inc({ result }),
  }
}

function commitMetrics(registry: Registry) {
  const { counter, exemplified } = metricSet(registry, 'kprobe_')
  const commits = counter('commits_total', 'Commits that the kernel accepted.')
  const bytes = counter(
    'commit_bytes_total',
    'Bytes of netlink messages in the commits that the kernel accepted.',
  )
  const changes = counter(
    'commit_changes_total',
    'Kernel objects that the accepted commits created, changed or removed.',
  )
  const duration = exemplified(
    'commit_duration_seconds',
    'Time from sending a commit to its acknowledgement.',
    [0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5],
  )
  return {
    commit(outcome: CommitFigures) {
      commits.inc()
      bytes.inc(outcome.bytes)
      changes.inc(outcome.changes)
      duration(outcome.durationMs / 1000, { generation: String(outcome.generation) })
    },
  }
}

interface CommitFigures {
  readonly bytes: number
  readonly durationMs: number
  readonly changes: number
  /** The generation by which /receipts lists the commit. */
  readonly generation: unknown
}

function drainMetrics(registry: Registry) {
  const { counter } = metricSet(registry, 'kprobe_')
  const gone = counter('drained_endpoints_total', 'Endpoints removed from IPVS after draining, by outcome.', [
    'outcome',
  ])
  const cut = counter(
    'drain_cut_connections_total',
    'Connections cut because the drain time of their endpoint expired.',
  )
  return {
    /** A removed endpoint is gone: after its last connection, or together with so many. */
    endpointGone(outcome: 'drained' | 'expired', connections: number) {
      gone.inc({ outcome })
      cut.inc(connections)
    },
  }
}

function driftMetrics(registry: Registry) {
  const { counter } = metricSet(registry, 'kprobe_')
  const foreign = counter('foreign_commits_total', 'Commits to nf_tables by other programs.')
  const drift = counter('drift_found_total', "Commits by other programs that changed kprobe's objects.")
  const heals = counter('heals_total', "Repairs of kprobe's kernel objects.")
  const objects = counter('healed_objects_total', 'Kernel objects repaired.')
  return {
    /** Another program committed; with `damage`, it changed kprobe's objects. */
    foreignCommit(damage = false) {
      foreign.inc()
      if (damage) drift.inc()
    },
    /** Drift of so many objects was repaired. */
    healed(count: number) {
      heals.inc()
      objects.inc(count)
    },
  }
}

interface SourceAnswers {
  readonly staleS: () => number | undefined
  readonly isDirect: () => boolean | undefined
}

/**
 * `staleS` gives the seconds since the last message of the part that has been silent longest; `isDirect` whether a source of
 * relays reads from the API server.
 */
function createSourceMetrics(registry: Registry, { staleS, isDirect }: SourceAnswers) {
  const { counter, asked, histogram } = metricSet(registry, 'kprobe_source_')
  asked(
    'stale_seconds',
    'Time since the last message from the part of the source that has been silent longest.',
    staleS,
  )
  asked('direct', 'Whether the node reads from the API server because no relay answers: 1 or 0.', () =>
    isDirect() === true ? 1 : 0,
  )
  const problems = counter('problems_total', 'Failures of a part of the source.')
  const byReason = ['resource', 'reason'] as const
  const lists = counter('lists_total', 'Complete lists read, by reason.', byReason)
  const ends = counter('watch_ends_total', 'Watches that ended, by reason.', byReason)
  const events = counter('watch_events_total', 'Events received by watches that ended.', ['resource'])
  const bytes = counter('bytes_total', 'Bytes received by lists and by watches that ended.', [
    'resource',
    'from',
  ])
  const skipped = counter('skipped_total', 'Events and objects ignored, by reason.', byReason)
  const repaired = counter(
    'repaired_objects_total',
    'Objects corrected by a list because their events were lost.',
    ['resource'],
  )
  const duration = histogram('list_duration_seconds', 'Duration of complete lists.', {
    buckets: [0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60],
    labelNames: ['resource'],
  })
  const reasons = new LabelValues()
  const labels = (its: { readonly resource: string; readonly reason: string }) => ({
    resource: its.resource,
    reason: reasons.of(its.reason),
  })
  return {
    sourceProblem: () => problems.inc(),
    observed(its: SourceObservation) {
      const { resource } = its
      switch (its.kind) {
        case 'listed':
          lists.inc(labels(its))
          bytes.inc({ resource, from: 'list' }, its.bytes)
          duration.observe({ resource }, its.durationMs / 1000)
          break
        case 'watch-ended':
          ends.inc(labels(its))
          events.inc({ resource }, its.events)
          bytes.inc({ resource, from: 'watch' }, its.bytes)
          break
        case 'skipped':
          skipped.inc(labels(its))
          break
        case 'repaired':
          repaired.inc({ resource }, its.objects)
          break
      }
    },
  }
}

export type SavedStateMetrics = ReturnType<typeof createSavedStateMetrics>

/** Creates metrics of the state that --state-dir keeps on disk. */
function createSavedStateMetrics(registry: Registry) {
  const { counter, gauge, asked } = metricSet(registry, 'kprobe_saved_state_')
  let read: (() => number | undefined) | undefined
  asked(
    'served',
    'Whether the saved state is served because the API server has not answered since the start: 1 or 0.',
    () => (read === undefined ? 0 : 1),
  )
  asked(
    'stale_seconds',
    'Time since the API server confirmed the saved state that is served; 0 while none is.',
    () => read?.() ?? 0,
  )
  const refused = counter('refused_total', 'Files of a saved state that were ignored, by reason.', ['reason'])
  const saves = counter('saves_total', 'Writes of the saved state, by outcome.', ['outcome'])
  const bytes = gauge('bytes', 'Size of the saved state that was written last.')
  return {
    /** Sets the age of the saved state that is served, seconds; undefined when none is. */
    serving: (staleS: (() => number | undefined) | undefined) => {
      read = staleS
    },
    refused: (reason: string) => refused.inc({ reason }),
    saved: (size: number) => {
      saves.inc({ outcome: 'saved' })
      bytes.set(size)
    },
    saveFailed: () => saves.inc({ outcome: 'failed' }),
  }
}

export type NodeConditionMetrics = ReturnType<typeof createNodeConditionMetrics>

function createNodeConditionMetrics(registry: Registry) {
  const { counter, gauge } = metricSet(registry, 'kprobe_node_condition_')
  const now = gauge('status', 'Whether the condition of --node-condition is True: 1 or 0.')
  const patches = counter('patches_total', 'Attempts to set the condition of the Node, by outcome.', [
    'outcome',
  ])
  return {
    /** The condition in the Node is True or False. */
    condition: (isTrue: boolean) => now.set(isTrue ? 1 : 0),
    patched: (outcome: 'accepted' | 'failed') => patches.inc({ outcome }),
  }
}

/** Statistics of the connection-tracking table; counts start with the network namespace. */
interface ConntrackTable {
  readonly entries: number
  readonly entriesMax: number | undefined
  readonly insertFailed: number
  readonly dropped: number
  readonly droppedEarly: number
}

/** Creates metrics of the table's usage, and of packets lost because it is full or in races of translation (I-22, I-24). */
export function createConntrackMetrics(registry: Registry) {
  const { counter, gauge } = metricSet(registry, 'kprobe_conntrack_')
  const entries = gauge('entries', 'Tracked connections.')
  const limit = gauge('entries_limit', 'Maximum number of tracked connections (nf_conntrack_max).')
  const lost = counter(
    'lost_total',
    'Packets dropped and entries evicted by connection tracking, by reason.',
    ['reason'],
  )
  const follow = (reason: string) => {
    lost.inc({ reason }, 0)
    let before: number | undefined
    return (now: number) => {
      // Losses before this process started do not count; a counter that fell was reset.
      if (before !== undefined) lost.inc({ reason }, now >= before ? now - before : now)
      before = now
    }
  }
  const insertFailed = follow('insert_failed')
  const dropped = follow('dropped')
  const droppedEarly = follow('dropped_early')
  return {
    conntrackTable(table: ConntrackTable) {
      entries.set(table.entries)
      if (table.entriesMax !== undefined) limit.set(table.entriesMax)
      insertFailed(table.insertFailed)
      dropped(table.dropped)
      droppedEarly(table.droppedEarly)
    },
  }
}

export type ProofMetrics = ReturnType<typeof createProofMetrics>

function createProofMetrics(registry: Registry) {
  const { counter, gauge, asked, histogram } = metricSet(registry, 'kprobe_proof_')
  let read: (() => number) | undefined
  asked(
    'age_seconds',
    'Time since the last proof read the kernel, or since the start; later changes are not proved. 0 without --prove and in modes that the daemon does not prove.',
    () => read?.() ?? 0,
  )
  const classes = gauge('classes', 'Classes of packets in the last proof.')
  const differences = gauge(
    'differences',
    'Addresses with port, node ports and other destinations whose packets the kernel treats differently from what Kubernetes specifies.',
  )
  const unknown = gauge(
    'unknown',
    'Addresses with port, node ports and other destinations whose packets meet rules of other programs that the proof cannot follow, and may differ.',
  )
  const duration = histogram('duration_seconds', 'Time that proofs ran, pauses not counted.', {
    buckets: [0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30],
  })
  const failures = counter('failures_total', 'Proofs that failed and were retried.')
  const discarded = counter(
    'reads_discarded_total',
    'Reads of the kernel discarded because the kernel changed during them.',
  )
  return {
    /** Gives the seconds since the last proof read the kernel. */
    age: (value: () => number) => {
      read = value
    },
    proved(its: { readonly classes: number; readonly durationMs: number }) {
      duration.observe(its.durationMs / 1000)
      classes.set(its.classes)
    },
    differences: (now: { readonly wrong: number; readonly unknown: number }) => {
      differences.set(now.wrong)
      unknown.set(now.unknown)
    },
    failed: () => failures.inc(),
    /** The kernel changed while it was read. */
    readDiscarded: () => discarded.inc(),
  }
}
