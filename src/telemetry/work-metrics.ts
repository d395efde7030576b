import type { Registry } from 'prom-client'
import type { Family } from '../base/ip.ts'
import { metricSet } from './metric-set.ts'

/** kprobe's own metrics of its work on the kernel. */
export interface WorkMetrics {
  commit(outcome: { readonly bytes: number; readonly durationMs: number; readonly changes: number }): void
  /** Another program committed before a commit, which is planned again. */
  staleCommit(): void
  failedPass(): void
  /** Another program committed; with `damage`, it changed kprobe's objects. */
  foreignCommit(damage?: boolean): void
  /** Drift of so many objects was repaired. */
  healed(objects: number): void
  quarantined(services: number): void
  refusals(now: number): void
  /** Sets the number of served Services. */
  services(now: number): void
  /** Sets whether this machine's Node object exists. */
  nodeKnown(isKnown: boolean): void
  /** Counts a failure to list the listening sockets of this node. */
  listenersFailed(): void
  /** A pass over the tracked flows failed. */
  conntrackFailed(family: Family): void
  /** A removed endpoint is gone: after its last connection, or together with so many. */
  endpointGone(outcome: 'drained' | 'expired', connections: number): void
  /** Counts a new configuration by its result. */
  configChanged(result: 'applied' | 'refused'): void
}

export function createWorkMetrics(registry: Registry): WorkMetrics {
  const { counter, gauge } = metricSet(registry, 'kprobe_')
  const stale = counter(
    'commit_generation_retries_total',
    'Commits that the kernel rejected because another program committed first.',
  )
  const failed = counter('failed_passes_total', 'Syncs that failed and were retried.')
  const inQuarantine = gauge('quarantined_services', 'Services that the kernel rejects now.')
  const refused = gauge(
    'refusals',
    'Fields and objects of the source that are ignored now because they are invalid, not allowed or too large.',
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
    staleCommit: () => stale.inc(),
    failedPass: () => failed.inc(),
    quarantined: services => inQuarantine.set(services),
    refusals: now => refused.set(now),
    services: now => served.set(now),
    nodeKnown: isKnown => node.set(isKnown ? 1 : 0),
    listenersFailed: () => listeners.inc(),
    conntrackFailed: family => flows.inc({ ip_family: family }),
    configChanged: result => configs.inc({ result }),
  }
}

function commitMetrics(registry: Registry): Pick<WorkMetrics, 'commit'> {
  const { counter, histogram } = metricSet(registry, 'kprobe_')
  const commits = counter('commits_total', 'Commits that the kernel accepted.')
  const bytes = counter('commit_bytes_total', 'Bytes of netlink messages in these commits.')
  const changes = counter(
    'commit_changes_total',
    'Kernel objects that these commits created, changed or removed.',
  )
  const duration = histogram(
    'commit_duration_seconds',
    'Time from sending a commit to its acknowledgement.',
    {
      buckets: [0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5],
    },
  )
  return {
    commit(outcome) {
      commits.inc()
      bytes.inc(outcome.bytes)
      changes.inc(outcome.changes)
      duration.observe(outcome.durationMs / 1000)
    },
  }
}

function drainMetrics(registry: Registry): Pick<WorkMetrics, 'endpointGone'> {
  const { counter } = metricSet(registry, 'kprobe_')
  const gone = counter('drained_endpoints_total', 'Endpoints removed from IPVS after draining, by outcome.', [
    'outcome',
  ])
  const cut = counter(
    'drain_cut_connections_total',
    'Connections cut because the drain time of their endpoint expired.',
  )
  return {
    endpointGone(outcome, connections) {
      gone.inc({ outcome })
      cut.inc(connections)
    },
  }
}

function driftMetrics(registry: Registry): Pick<WorkMetrics, 'foreignCommit' | 'healed'> {
  const { counter } = metricSet(registry, 'kprobe_')
  const foreign = counter('foreign_commits_total', 'Commits to nf_tables by other programs.')
  const drift = counter('drift_found_total', "Commits by other programs that changed kprobe's objects.")
  const heals = counter('heals_total', "Repairs of kprobe's kernel objects.")
  const objects = counter('healed_objects_total', 'Kernel objects repaired.')
  return {
    foreignCommit(damage = false) {
      foreign.inc()
      if (damage) drift.inc()
    },
    healed(count) {
      heals.inc()
      objects.inc(count)
    },
  }
}
