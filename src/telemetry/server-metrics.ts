import type { OverShare } from '../base/shares.ts'
import { addProcessMetrics } from './component-metrics.ts'
import { metricSet, Registry } from './metric-set.ts'

/** Numbers of the servers and of the event recorder at the time of a scrape; undefined for a part that does not run. */
export interface ServersState {
  /** Whether load balancers may send connections here (/healthz). */
  readonly ready: boolean
  readonly healthChecks?: { readonly listening: number; readonly failed: number } | undefined
  readonly overShare?: readonly ServerOverShare[]
  readonly events?:
    | { readonly taken: number; readonly refused: number; readonly dropped: number; readonly waiting: number }
    | undefined
}

/** Connections of one server that exceeded their shares. */
export interface ServerOverShare extends OverShare {
  readonly server: 'healthz' | 'metrics' | 'health_check_node_ports' | 'admin' | 'api' | 'relay' | 'ui'
}

/** Adds the metric of connections over their shares; `kprobe api` has it, too. */
export function addOverShareMetric(registry: Registry, read: () => readonly ServerOverShare[]): void {
  metricSet(registry, 'kprobe_').filled(
    'connections_over_share_total',
    'Connections closed since the start because their client, its prefix or its Service was over its share of a server.',
    {
      labelNames: ['server', 'outcome'],
      fill: counter => {
        for (const { server, evicted, refused } of read()) {
          counter.inc({ server, outcome: 'evicted' }, evicted)
          counter.inc({ server, outcome: 'refused' }, refused)
        }
      },
    },
  )
}

/** Adds metrics of the servers and of events, which each scrape reads. */
export function addServerMetrics(registry: Registry, read: () => ServersState): void {
  const { asked } = metricSet(registry, 'kprobe_')
  asked('ready', 'Whether /healthz answers 200.', () => (read().ready ? 1 : 0))
  asked(
    'health_check_listeners',
    'Open sockets of health check node ports.',
    () => read().healthChecks?.listening ?? 0,
  )
  asked(
    'health_check_listeners_failed',
    'Addresses of health check node ports at which listening failed and is retried.',
    () => read().healthChecks?.failed ?? 0,
  )
  asked(
    'http_connections_refused',
    'Connections closed since the start because of the connection limits.',
    () => (read().overShare ?? []).reduce((sum, { evicted, refused }) => sum + evicted + refused, 0),
  )
  addOverShareMetric(registry, () => read().overShare ?? [])
  asked('events_waiting', 'Kubernetes events waiting to be posted.', () => read().events?.waiting ?? 0)
  asked(
    'events_taken',
    'Kubernetes events that the API server accepted since the start.',
    () => read().events?.taken ?? 0,
  )
  asked(
    'events_lost',
    'Kubernetes events since the start that the API server rejected, or that were dropped because of a limit.',
    () => {
      const { refused = 0, dropped = 0 } = read().events ?? {}
      return refused + dropped
    },
  )
}

/** Numbers of the back-end API at the time of a scrape. */
export interface ApiNumbers {
  readonly number: number
  readonly services: number
  readonly endpoints: number
  /** Time since the state changed; undefined before the first state. */
  readonly sinceMs: number | undefined
  /** Time since the last message from the part of the source that has been silent longest. */
  readonly silentMs: number | undefined
  readonly sourceConnected: boolean
  readonly streams?: number
  readonly connections?: number
  readonly refused?: number
}

export function seconds(ms: number | undefined): number | undefined {
  return ms === undefined ? undefined : ms / 1_000
}

export function addApiMetrics(registry: Registry, read: () => ApiNumbers): void {
  const { asked } = metricSet(registry, 'kprobe_api_')
  asked(
    'state_number',
    'Number of the state that back ends receive; it grows with each change.',
    () => read().number,
  )
  asked('services', 'Services in that state.', () => read().services)
  asked('endpoints', 'Endpoints in that state.', () => read().endpoints)
  asked('state_age_seconds', 'Time since that state changed.', () => seconds(read().sinceMs))
  asked(
    'source_silent_seconds',
    'Age of the data: time since the last message from the part of the source that has been silent longest.',
    () => seconds(read().silentMs),
  )
  asked('source_connected', 'Whether the source is complete and has no error.', () =>
    read().sourceConnected ? 1 : 0,
  )
  asked('streams', 'Open streams of back ends.', () => read().streams ?? 0)
  asked('connections', 'Open connections of back ends.', () => read().connections ?? 0)
  asked(
    'refused',
    'Connections and calls rejected since the start because of a limit, or because they are not gRPC.',
    () => read().refused ?? 0,
  )
}

/** Creates the metrics of `kprobe api`. Gives them in Prometheus' text format. */
export function createApiMetrics(
  read: () => ApiNumbers,
  overShare: () => readonly ServerOverShare[],
): () => Promise<string> {
  const registry = new Registry()
  addProcessMetrics(registry)
  addApiMetrics(registry, read)
  addOverShareMetric(registry, overShare)
  return () => registry.text()
}
