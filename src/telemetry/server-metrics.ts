import type { OverShare } from '../base/shares.ts'
import { type Rows, readCounter, readGauge } from './metric-set.ts'

/** Numbers of the servers and of the event recorder at the time of a scrape; undefined for a part that does not run. */
export interface ServersState {
  /** Load balancers may send connections here (/healthz). */
  readonly ready: boolean
  readonly healthChecks?: { readonly listening: number; readonly failed: number } | undefined
  readonly overShare?: readonly ServerOverShare[]
  readonly events?:
    | { readonly taken: number; readonly refused: number; readonly dropped: number; readonly waiting: number }
    | undefined
}

export interface ServerOverShare extends OverShare {
  readonly server: 'healthz' | 'metrics' | 'health_check_node_ports' | 'admin' | 'api' | 'relay' | 'ui'
}

export type OverShares = Pick<ServersState, 'overShare'>

/** The metric of connections over their shares; `kprobe api` and `kprobe relay` have it, too. */
export const OVER_SHARE = {
  kprobe_connections_over_share_total: readCounter(
    'Connections closed since the start because their client, its prefix or its Service exceeded its share of a server.',
    ({ overShare = [] }) =>
      overShare.flatMap(({ server, evicted, refused }): [Record<'server' | 'outcome', string>, number][] => [
        [{ server, outcome: 'evicted' }, evicted],
        [{ server, outcome: 'refused' }, refused],
      ]),
    'server',
    'outcome',
  ),
} satisfies Rows<OverShares>

export const SERVERS = {
  kprobe_ready: readGauge('Whether /healthz answers 200.', ({ ready }) => Number(ready)),
  kprobe_health_check_listeners: readGauge(
    'Open sockets of health check node ports.',
    ({ healthChecks }) => healthChecks?.listening ?? 0,
  ),
  kprobe_health_check_listeners_failed: readGauge(
    'Addresses of health check node ports at which listening failed and is retried.',
    ({ healthChecks }) => healthChecks?.failed ?? 0,
  ),
  kprobe_http_connections_refused: readGauge(
    'Connections closed since the start because of the connection limits.',
    ({ overShare = [] }) => overShare.reduce((sum, { evicted, refused }) => sum + evicted + refused, 0),
  ),
  ...OVER_SHARE,
  kprobe_events_waiting: readGauge(
    'Kubernetes events waiting to be posted.',
    ({ events }) => events?.waiting ?? 0,
  ),
  kprobe_events_taken_total: readCounter(
    'Kubernetes events that the API server accepted.',
    ({ events }) => events?.taken ?? 0,
  ),
  kprobe_events_lost_total: readCounter(
    'Kubernetes events that the API server rejected, or that a limit dropped.',
    ({ events }) => (events?.refused ?? 0) + (events?.dropped ?? 0),
  ),
} satisfies Rows<ServersState>

export function seconds(ms: number | undefined): number | undefined {
  return ms === undefined ? undefined : ms / 1_000
}

export const SILENT =
  'Age of the data: time since the last message from the part of the source that has been silent longest.'
export const REFUSED =
  'Connections and calls rejected since the start because of a limit, or because they are not gRPC.'
