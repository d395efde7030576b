import type { Registry } from 'prom-client'
import type { OverShare } from '../base/connection-gate.ts'
import { metricSet } from './metric-set.ts'

/** Numbers of the servers and of the event recorder at the time of a scrape; undefined for a part that does not run. */
export interface OutwardState {
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
  readonly server: 'healthz' | 'metrics' | 'health_check_node_ports' | 'admin' | 'api'
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
export function addOutwardMetrics(registry: Registry, read: () => OutwardState): void {
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
