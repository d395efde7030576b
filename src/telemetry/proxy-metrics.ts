import { PersistentMap } from '../base/collections.ts'
import { FAMILIES, type Family } from '../base/ip.ts'
import type { FrontendTable, PortFrontends, ServiceFrontends } from '../model/frontend.ts'
import type { Snapshot } from '../model/snapshot.ts'
import { counter, gauge, type Handles, histogram, type Rows } from './metric-set.ts'

/** 1 ms to 16.384 s, doubling. */
const SYNC_BUCKETS: readonly number[] = Array.from({ length: 15 }, (_, k) => 0.001 * 2 ** k)

/** kube-proxy's buckets: fine for the first minute, coarse up to five. */
const PROGRAMMING_BUCKETS: readonly number[] = [
  0,
  0.25,
  0.5,
  ...steps({ from: 1, to: 59, by: 1 }),
  ...steps({ from: 60, to: 115, by: 5 }),
  ...steps({ from: 120, to: 300, by: 30 }),
]

function steps({ from, to, by }: Readonly<Record<'from' | 'to' | 'by', number>>): readonly number[] {
  return Array.from({ length: (to - from) / by + 1 }, (_, k) => from + k * by)
}

/**
 * The metrics of kube-proxy's nftables mode, with the same names, types, labels and buckets
 * (pkg/proxy/metrics/metrics.go). One pass programs both families, so its values count for each family.
 */
export const PROXY = {
  kubeproxy_sync_proxy_rules_duration_seconds: histogram('Duration of a sync.', SYNC_BUCKETS, 'ip_family'),
  kubeproxy_sync_full_proxy_rules_duration_seconds: histogram(
    'Duration of a full resync, which reads the whole kernel state.',
    SYNC_BUCKETS,
    'ip_family',
  ),
  kubeproxy_sync_partial_proxy_rules_duration_seconds: histogram(
    'Duration of a sync that sends changes only.',
    SYNC_BUCKETS,
    'ip_family',
  ),
  kubeproxy_sync_proxy_rules_last_timestamp_seconds: gauge(
    'Time of the last successful sync, in Unix time.',
    'ip_family',
  ),
  kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds: gauge(
    'Time of the last request for a sync, in Unix time.',
    'ip_family',
  ),
  kubeproxy_sync_proxy_rules_nftables_sync_failures_total: counter('Failed syncs.', 'ip_family'),
  kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total: counter(
    'Failed removals of unused objects.',
    'ip_family',
  ),
  kubeproxy_network_programming_duration_seconds: histogram(
    'Time from the change of a pod or Service to its commit in the kernel, by EndpointSlice.',
    PROGRAMMING_BUCKETS,
    'ip_family',
  ),
  kubeproxy_sync_proxy_rules_service_changes_total: counter('Changes of objects of kind service.'),
  kubeproxy_sync_proxy_rules_endpoint_changes_total: counter('Changes of objects of kind endpoint.'),
  kubeproxy_sync_proxy_rules_service_changes_pending: gauge(
    'Changes of objects of kind service that are not in the kernel yet.',
  ),
  kubeproxy_sync_proxy_rules_endpoint_changes_pending: gauge(
    'Changes of objects of kind endpoint that are not in the kernel yet.',
  ),
  kubeproxy_sync_proxy_rules_no_local_endpoints_total: gauge(
    'Ports of Services with a Local traffic policy that have endpoints, but none on this node.',
    'traffic_policy',
    'ip_family',
  ),
  kubeproxy_proxy_healthz_total: counter('Answers of /healthz by status code.', 'code'),
  kubeproxy_proxy_livez_total: counter('Answers of /livez by status code.', 'code'),
  kubeproxy_conntrack_reconciler_sync_duration_seconds: histogram(
    'Duration of a pass over the connection-tracking table.',
    SYNC_BUCKETS,
    'ip_family',
  ),
  kubeproxy_conntrack_reconciler_deleted_entries_total: counter(
    'Connection-tracking entries deleted.',
    'ip_family',
  ),
} satisfies Rows<unknown>

interface Sync {
  readonly full: boolean
  readonly durationMs: number
  /** Its end, milliseconds since 1970. */
  readonly wallMs: number
  readonly noLocal: LocalPolicyCounts
}

type ProxyMetrics = Handles<typeof PROXY>

/** Counts a Snapshot to program, which was offered at this time, milliseconds since 1970. */
export function countOffer(metrics: ProxyMetrics, { services, slices }: Changes, wallMs: number): void {
  metrics.kubeproxy_sync_proxy_rules_service_changes_total.inc(services)
  metrics.kubeproxy_sync_proxy_rules_endpoint_changes_total.inc(slices)
  for (const ip_family of FAMILIES)
    metrics.kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds.set({ ip_family }, wallMs / 1000)
}

export function setPending(metrics: ProxyMetrics, { services, slices }: Changes): void {
  metrics.kubeproxy_sync_proxy_rules_service_changes_pending.set(services)
  metrics.kubeproxy_sync_proxy_rules_endpoint_changes_pending.set(slices)
}

export function countProbe(metrics: ProxyMetrics, probe: 'healthz' | 'livez', status: number): void {
  const { kubeproxy_proxy_healthz_total: healthz, kubeproxy_proxy_livez_total: livez } = metrics
  const answers = probe === 'healthz' ? healthz : livez
  answers.inc({ code: String(status) })
}

export function countSync(metrics: ProxyMetrics, { full, durationMs, wallMs, noLocal }: Sync): void {
  const durations = full
    ? metrics.kubeproxy_sync_full_proxy_rules_duration_seconds
    : metrics.kubeproxy_sync_partial_proxy_rules_duration_seconds
  const ports = metrics.kubeproxy_sync_proxy_rules_no_local_endpoints_total
  for (const ip_family of FAMILIES) {
    metrics.kubeproxy_sync_proxy_rules_duration_seconds.observe({ ip_family }, durationMs / 1000)
    durations.observe({ ip_family }, durationMs / 1000)
    metrics.kubeproxy_sync_proxy_rules_last_timestamp_seconds.set({ ip_family }, wallMs / 1000)
    ports.set({ traffic_policy: 'internal', ip_family }, noLocal.internal[ip_family])
    ports.set({ traffic_policy: 'external', ip_family }, noLocal.external[ip_family])
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
