import type { Registry } from 'prom-client'
import type { OverShare } from '../base/connection-gate.ts'
import { metricSet } from './metric-set.ts'

/** What the parts that face outward have to say when the metrics are read; a part that does not run is undefined. */
export interface OutwardState {
  /** Whether load balancers may send connections here (/healthz). */
  readonly ready: boolean
  readonly healthChecks?: { readonly listening: number; readonly failed: number } | undefined
  readonly overShare?: readonly ServerOverShare[]
  readonly events?:
    | { readonly taken: number; readonly refused: number; readonly dropped: number; readonly waiting: number }
    | undefined
}

/** Connections over their shares at one of our servers. */
export interface ServerOverShare extends OverShare {
  readonly server: 'healthz' | 'metrics' | 'health_check_node_ports' | 'admin' | 'api'
}

/** Also in `kprobe api`, which has some of the servers. */
export function addOverShareMetric(registry: Registry, look: () => readonly ServerOverShare[]): void {
  metricSet(registry, 'kprobe_').filled(
    'connections_over_share_total',
    'Connections closed since the start because their client, its prefix or its Service was over its share of a server.',
    {
      labelNames: ['server', 'outcome'],
      fill: counter => {
        for (const { server, evicted, refused } of look()) {
          counter.inc({ server, outcome: 'evicted' }, evicted)
          counter.inc({ server, outcome: 'refused' }, refused)
        }
      },
    },
  )
}

/** Our own numbers about servers and events, taken from the parts themselves at each scrape. */
export function addOutwardMetrics(registry: Registry, look: () => OutwardState): void {
  const { asked } = metricSet(registry, 'kprobe_')
  asked('ready', 'Whether /healthz answers 200.', () => (look().ready ? 1 : 0))
  asked(
    'health_check_listeners',
    'Open sockets of health check node ports.',
    () => look().healthChecks?.listening ?? 0,
  )
  asked(
    'health_check_listeners_failed',
    'Addresses of health check node ports at which listening failed and is retried.',
    () => look().healthChecks?.failed ?? 0,
  )
  asked(
    'http_connections_refused',
    'Connections closed since the start because of the connection limits.',
    () => (look().overShare ?? []).reduce((sum, { evicted, refused }) => sum + evicted + refused, 0),
  )
  addOverShareMetric(registry, () => look().overShare ?? [])
  asked('events_waiting', 'Kubernetes events waiting to be posted.', () => look().events?.waiting ?? 0)
  asked(
    'events_taken',
    'Kubernetes events that the API server accepted since the start.',
    () => look().events?.taken ?? 0,
  )
  asked(
    'events_lost',
    'Kubernetes events since the start that the API server rejected, or that were dropped because of a limit.',
    () => {
      const { refused = 0, dropped = 0 } = look().events ?? {}
      return refused + dropped
    },
  )
}
