import type { Registry } from 'prom-client'
import { metricSet } from './metric-set.ts'

/** What the parts that face outward have to say when the metrics are read; a part that does not run is undefined. */
export interface OutwardState {
  /** Whether load balancers may send connections here (/healthz). */
  readonly ready: boolean
  readonly healthChecks?:
    | { readonly listening: number; readonly failed: number; readonly refused: number }
    | undefined
  /** Connections over the limits, at all other servers. */
  readonly refusedConnections?: number
  readonly events?:
    | { readonly taken: number; readonly refused: number; readonly dropped: number; readonly waiting: number }
    | undefined
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
    () => (look().refusedConnections ?? 0) + (look().healthChecks?.refused ?? 0),
  )
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
