import { PersistentMap } from '../base/collections.ts'
import { FAMILIES, type Family } from '../base/ip.ts'
import type { FrontendTable, PortFrontends, ServiceFrontends } from '../model/frontend.ts'
import type { Snapshot } from '../model/snapshot.ts'
import { metricSet, type Registry } from './metric-set.ts'

/** 1 ms to 16.384 s, doubling. */
const SYNC_BUCKETS: readonly number[] = Array.from({ length: 15 }, (_, k) => 0.001 * 2 ** k)

/** kube-proxy's buckets: fine for the first minute, coarse up to five. */
const PROGRAMMING_BUCKETS: readonly number[] = [
  0,
  ...linear({ start: 0.25, width: 0.25, count: 2 }),
  ...linear({ start: 1, width: 1, count: 59 }),
  ...linear({ start: 60, width: 5, count: 12 }),
  ...linear({ start: 120, width: 30, count: 7 }),
]

function linear({
  start,
  width,
  count,
}: {
  readonly start: number
  readonly width: number
  readonly count: number
}): readonly number[] {
  return Array.from({ length: count }, (_, k) => start + k * width)
}

export type ProxyMetrics = ReturnType<typeof createProxyMetrics>

/**
 * Creates the metrics of kube-proxy's nftables mode, with the same names, types, labels and buckets
 * (pkg/proxy/metrics/metrics.go). One pass programs both families, so its values count for each family.
 */
export function createProxyMetrics(registry: Registry) {
  const sync = syncMetrics(registry)
  const changes = changeMetrics(registry)
  const { counter, levels, histogram } = metricSet(registry, 'kubeproxy_')
  // Values that change with every sync become metrics when the metrics are read.
  let noLocal: LocalPolicyCounts | undefined
  levels(
    'sync_proxy_rules_no_local_endpoints_total',
    'Ports of Services with a Local traffic policy that have endpoints, but none on this node.',
    {
      labelNames: ['traffic_policy', 'ip_family'],
      fill: gauge => {
        for (const family of noLocal === undefined ? [] : FAMILIES) {
          gauge.set({ traffic_policy: 'internal', ip_family: family }, noLocal?.internal[family] ?? 0)
          gauge.set({ traffic_policy: 'external', ip_family: family }, noLocal?.external[family] ?? 0)
        }
      },
    },
  )
  const healthz = counter('proxy_healthz_total', 'Answers of /healthz by status code.', ['code'])
  const livez = counter('proxy_livez_total', 'Answers of /livez by status code.', ['code'])
  const flows = histogram(
    'conntrack_reconciler_sync_duration_seconds',
    'Duration of a pass over the connection-tracking table.',
    { buckets: SYNC_BUCKETS, labelNames: ['ip_family'] },
  )
  const flowsDeleted = counter(
    'conntrack_reconciler_deleted_entries_total',
    'Connection-tracking entries deleted.',
    ['ip_family'],
  )
  return {
    ...sync,
    ...changes,
    noLocalEndpoints(counts: LocalPolicyCounts) {
      noLocal = counts
    },
    conntrackPass({ family, durationMs, deleted }: ConntrackPass) {
      flows.observe({ ip_family: family }, durationMs / 1000)
      flowsDeleted.inc({ ip_family: family }, deleted)
    },
    probed: (probe: 'healthz' | 'livez', code: number) =>
      (probe === 'healthz' ? healthz : livez).inc({ code: String(code) }),
  }
}

interface ConntrackPass {
  readonly family: Family
  readonly durationMs: number
  readonly deleted: number
}

function syncMetrics(registry: Registry) {
  const { counter, histogram } = metricSet(registry, 'kubeproxy_')
  const labelNames = ['ip_family'] as const
  const timed = (name: string, help: string) =>
    histogram(`${name}_duration_seconds`, help, { buckets: SYNC_BUCKETS, labelNames })
  const all = timed('sync_proxy_rules', 'Duration of a sync.')
  const full = timed(
    'sync_full_proxy_rules',
    'Duration of a full resync, which reads the whole kernel state.',
  )
  const partial = timed('sync_partial_proxy_rules', 'Duration of a sync that sends changes only.')
  const each = (set: (labels: { readonly ip_family: Family }) => void) => {
    for (const family of FAMILIES) set({ ip_family: family })
  }
  const times = syncTimes(registry)
  const failures = counter('sync_proxy_rules_nftables_sync_failures_total', 'Failed syncs.', labelNames)
  const cleanups = counter(
    'sync_proxy_rules_nftables_cleanup_failures_total',
    'Failed removals of unused objects.',
    labelNames,
  )
  const programming = histogram(
    'network_programming_duration_seconds',
    'Time from the change of a pod or Service to its commit in the kernel, by EndpointSlice.',
    { buckets: PROGRAMMING_BUCKETS, labelNames },
  )
  return {
    /** A sync was requested at this wall-clock time. */
    queued: (wallMs: number) => {
      times.queuedWallMs = wallMs
    },
    /** A pass succeeded; `full` if it read the whole kernel state. */
    synced(pass: { readonly full: boolean; readonly durationMs: number; readonly wallMs: number }) {
      times.syncedWallMs = pass.wallMs
      each(labels => {
        const seconds = pass.durationMs / 1000
        all.observe(labels, seconds)
        if (pass.full) full.observe(labels, seconds)
        else partial.observe(labels, seconds)
      })
    },
    syncFailed: () => each(labels => failures.inc(labels)),
    cleanupFailed: () => each(labels => cleanups.inc(labels)),
    programmed(latencies: readonly ProgrammingLatency[]) {
      for (const { family, latencyMs } of latencies)
        programming.observe({ ip_family: family }, latencyMs / 1000)
    },
  }
}

interface SyncTimes {
  syncedWallMs?: number
  queuedWallMs?: number
}

/** Makes metrics of the times that the caller writes into the result. */
function syncTimes(registry: Registry): SyncTimes {
  const { levels } = metricSet(registry, 'kubeproxy_')
  const times: SyncTimes = {}
  const time = (which: keyof SyncTimes, name: string, help: string) =>
    levels(`${name}_timestamp_seconds`, help, {
      labelNames: ['ip_family'],
      fill: gauge => {
        const wallMs = times[which]
        if (wallMs === undefined) return
        for (const family of FAMILIES) gauge.set({ ip_family: family }, wallMs / 1000)
      },
    })
  time('syncedWallMs', 'sync_proxy_rules_last', 'Time of the last successful sync, in Unix time.')
  time('queuedWallMs', 'sync_proxy_rules_last_queued', 'Time of the last request for a sync, in Unix time.')
  return times
}

function changeMetrics(registry: Registry) {
  const { counter, asked } = metricSet(registry, 'kubeproxy_')
  let pending = NONE
  const total = (noun: string) =>
    counter(`sync_proxy_rules_${noun}_changes_total`, `Changes of objects of kind ${noun}.`)
  const waiting = (noun: string, count: () => number) =>
    asked(
      `sync_proxy_rules_${noun}_changes_pending`,
      `Changes of objects of kind ${noun} that are not in the kernel yet.`,
      count,
    )
  const services = total('service')
  const endpoints = total('endpoint')
  waiting('service', () => pending.services)
  waiting('endpoint', () => pending.slices)
  return {
    changes(news: Changes) {
      services.inc(news.services)
      endpoints.inc(news.slices)
    },
    pending(now: Changes) {
      pending = now
    },
  }
}

interface Changes {
  readonly services: number
  readonly slices: number
}

/** Counts the objects that differ between two Snapshots. The cost follows the changes. */
export function changesBetween(before: Snapshot | undefined, now: Snapshot): Changes {
  if (before === undefined) return { services: now.services.size, slices: now.sliceByKey.size }
  return {
    services: PersistentMap.changes(before.services, now.services).length,
    slices: PersistentMap.changes(before.sliceByKey, now.sliceByKey).length,
  }
}

/** Counts the changes that the kernel does not have yet. */
export class PendingChanges {
  #newest: Snapshot | undefined
  #services = 0
  #slices = 0

  /** Takes a Snapshot to program. Gives the changes since the one before. */
  offered(snapshot: Snapshot): Changes {
    const news = changesBetween(this.#newest, snapshot)
    this.#newest = snapshot
    this.#services += news.services
    this.#slices += news.slices
    return news
  }

  synced(snapshot: Snapshot): void {
    const left = this.#newest === undefined ? NONE : changesBetween(snapshot, this.#newest)
    this.#services = left.services
    this.#slices = left.slices
  }

  get now(): Changes {
    return { services: this.#services, slices: this.#slices }
  }
}

const NONE: Changes = { services: 0, slices: 0 }

/** The time of one changed slice from the change of its pods to the kernel (the SLI of SIG Scalability). */
export interface ProgrammingLatency {
  readonly family: Family
  readonly latencyMs: number
}

/**
 * Gives the latencies of slices that differ between two programmed Snapshots. Skips deleted slices, whose trigger belongs
 * to the change before, and triggers older than this process. A control plane whose clock is ahead gives 0.
 */
export function programmingLatencies(
  before: Snapshot | undefined,
  now: Snapshot,
  times: { readonly startedWallMs: number; readonly nowWallMs: number },
): readonly ProgrammingLatency[] {
  const previous = before?.sliceByKey ?? PersistentMap.empty()
  const latencies: ProgrammingLatency[] = []
  for (const [, old, slice] of PersistentMap.differences(previous, now.sliceByKey)) {
    if (slice === undefined || slice.triggerTimeMs <= times.startedWallMs) continue
    // A change of hints or labels has no trigger of its own, and carries the one before.
    if (old?.triggerTimeMs === slice.triggerTimeMs) continue
    latencies.push({ family: slice.family, latencyMs: Math.max(0, times.nowWallMs - slice.triggerTimeMs) })
  }
  return latencies
}

/** Numbers of service ports with traffic policy Local and no endpoint on this node: these drop new connections. */
interface LocalPolicyCounts {
  readonly internal: Readonly<Record<Family, number>>
  readonly external: Readonly<Record<Family, number>>
}

/** Updates the numbers from table to table. The cost follows the changes. */
export class LocalPolicyCounter {
  #services: PersistentMap<ServiceFrontends> = PersistentMap.empty()
  readonly #internal: Record<Family, number> = { IPv4: 0, IPv6: 0 }
  readonly #external: Record<Family, number> = { IPv4: 0, IPv6: 0 }

  update({ services }: FrontendTable): LocalPolicyCounts {
    for (const [, before, now] of PersistentMap.differences(this.#services, services)) {
      this.#add(before, -1)
      this.#add(now, 1)
    }
    this.#services = services
    return { internal: { ...this.#internal }, external: { ...this.#external } }
  }

  #add(service: ServiceFrontends | undefined, sign: 1 | -1): void {
    if (service === undefined) return
    for (const port of service.ports) {
      if (isDroppedInside(port)) this.#internal[port.family] += sign
      if (isDroppedOutside(port)) this.#external[port.family] += sign
    }
  }
}

function isDroppedInside({ frontends }: PortFrontends): boolean {
  return frontends.some(({ route }) => route.kind === 'drop')
}

function isDroppedOutside({ frontends, local }: PortFrontends): boolean {
  return local.length === 0 && frontends.some(({ route }) => route.kind === 'external-local')
}
