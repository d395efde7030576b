import type { SourceObservation } from '../source/source.ts'
import { addConnectionMetrics, type ConnectionMetricsOptions } from './connection-metrics.ts'
import { type MetricHandles, type MetricSources, ROWS } from './metric-rows.ts'
import { MetricSet, type MetricsFormat, type ReadRows } from './metric-set.ts'
import { addProcessMetrics } from './process-metrics.ts'
import { SERVERS, type ServersState } from './server-metrics.ts'

export interface Metrics extends MetricHandles, ReturnType<typeof observersOf> {
  text(format?: MetricsFormat): Promise<string>
}

export interface MetricsOptions extends MetricSources {
  readonly servers: () => ServersState
  /** New connections by Service and endpoint; undefined omits them. */
  readonly connections: ConnectionMetricsOptions | undefined
  readonly ofMode: () => Promise<ReadRows>
  readonly addMetrics: (set: MetricSet) => void
}

export function createMetrics(options: MetricsOptions): Metrics {
  const { servers, connections, ofMode, addMetrics } = options
  const set = new MetricSet()
  addProcessMetrics(set)
  if (connections !== undefined) addConnectionMetrics(set, connections)
  set.add(SERVERS, servers)
  addMetrics(set)
  const handles = set.add(ROWS, () => options)
  return { ...handles, ...observersOf(handles), text: async format => set.text(format, await ofMode()) }
}

interface ApiRequest {
  readonly method: string
  readonly host: string
  readonly status: number | undefined
  readonly durationMs: number
}

/** Statistics of the connection-tracking table; counts start with the network namespace. */
interface ConntrackTable {
  readonly entries: number
  readonly entriesMax: number | undefined
  readonly insertFailed: number
  readonly dropped: number
  readonly droppedEarly: number
}

function observersOf(metrics: MetricHandles) {
  const conntrackLost = conntrackLosses(metrics)
  return {
    observed: sourceObserver(metrics),
    apiRequest({ method, host, status, durationMs }: ApiRequest) {
      metrics.rest_client_requests_total.inc({ code: codeText(status), method, host })
      metrics.rest_client_request_duration_seconds.observe({ verb: method, host }, durationMs / 1000)
    },
    /** Counts the usage of the table, and packets lost because it is full or in races of translation (I-22, I-24). */
    conntrackTable(table: ConntrackTable) {
      metrics.kprobe_conntrack_entries.set(table.entries)
      if (table.entriesMax !== undefined) metrics.kprobe_conntrack_entries_limit.set(table.entriesMax)
      conntrackLost(table)
    },
  }
}

function codeText(status: number | undefined): string {
  return status !== undefined && status >= 100 && status <= 599 ? String(status) : '<error>'
}

const LOSSES = [
  ['insertFailed', 'insert_failed'],
  ['dropped', 'dropped'],
  ['droppedEarly', 'dropped_early'],
] as const

function conntrackLosses({ kprobe_conntrack_lost_total: lost }: MetricHandles) {
  for (const [, reason] of LOSSES) lost.inc({ reason }, 0)
  let before: ConntrackTable | undefined
  return (now: ConntrackTable): void => {
    const was = before
    before = now
    // Losses before this process started do not count.
    if (was === undefined) return
    for (const [field, reason] of LOSSES) {
      const isReset = now[field] < was[field]
      lost.inc({ reason }, isReset ? now[field] : now[field] - was[field])
    }
  }
}

function sourceObserver(metrics: MetricHandles) {
  return (its: SourceObservation): void => {
    const { resource } = its
    switch (its.kind) {
      case 'listed':
        metrics.kprobe_source_lists_total.inc({ resource, reason: its.reason })
        metrics.kprobe_source_bytes_total.inc({ resource, from: 'list' }, its.bytes)
        metrics.kprobe_source_list_duration_seconds.observe({ resource }, its.durationMs / 1000)
        break
      case 'watch-ended':
        metrics.kprobe_source_watch_ends_total.inc({ resource, reason: its.reason })
        metrics.kprobe_source_watch_events_total.inc({ resource }, its.events)
        metrics.kprobe_source_bytes_total.inc({ resource, from: 'watch' }, its.bytes)
        break
      case 'skipped':
        metrics.kprobe_source_skipped_total.inc({ resource, reason: its.reason })
        break
      case 'repaired':
        metrics.kprobe_source_repaired_objects_total.inc({ resource }, its.objects)
        break
    }
  }
}
