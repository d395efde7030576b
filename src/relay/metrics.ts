import { histogram, MetricSet, type Rows, readCounter, readGauge } from '../telemetry/metric-set.ts'
import { addProcessMetrics } from '../telemetry/process-metrics.ts'
import { OVER_SHARE, type OverShares, REFUSED, SILENT, seconds } from '../telemetry/server-metrics.ts'
import type { RelayServer } from './server.ts'
import type { RelayState } from './state.ts'

/** A relay at the time of a scrape. */
interface RelayNow extends OverShares, Pick<RelayServer, 'counts' | 'expiresMs'> {
  readonly state: RelayState
  /** Time since the last message from the part of the source that has been silent longest; undefined before the first. */
  readonly silentMs: number | undefined
  /** Nodes that request a fresh relay are served. */
  readonly isServing: boolean
  /** Nodes whose Sets are computed; undefined where they are not served. */
  readonly setsNodes: number | undefined
}

/** Up to the time after which a change no longer waits for nodes. */
const LATENCY_BUCKETS = [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60] as const

export const RELAY = {
  kprobe_relay_objects: readGauge(
    'Objects that the relay holds.',
    ({ state }) => Object.entries(state.collections).map(([kind, { size }]) => [{ kind }, size]),
    'kind',
  ),
  kprobe_relay_objects_refused: readGauge(
    'Objects of the source that the relay cannot read, and does not serve.',
    ({ state }) => Object.entries(state.collections).map(([kind, { refused }]) => [{ kind }, refused]),
    'kind',
  ),
  kprobe_relay_connections: readGauge('Open connections of readers.', ({ counts }) => counts.connections),
  kprobe_relay_streams: readGauge('Open streams of readers.', ({ counts }) => counts.streams),
  kprobe_relay_subscriptions: readGauge(
    'Collections that readers follow, over all streams.',
    ({ counts }) => counts.subscriptions,
  ),
  kprobe_relay_evicted: readGauge(
    'Readers evicted since the start because they were too slow.',
    ({ counts }) => counts.evicted,
  ),
  kprobe_relay_rejected: readGauge(
    'Responses that readers rejected since the start (NACK).',
    ({ counts }) => counts.rejected,
  ),
  kprobe_relay_unauthorized: readGauge(
    'Calls rejected since the start because they had neither a certificate of a node nor a valid token.',
    ({ counts }) => counts.unauthorized,
  ),
  kprobe_relay_refused: readGauge(REFUSED, ({ counts }) => counts.refused),
  kprobe_relay_history_bytes: readGauge(
    'Bytes of the change history from which readers resume.',
    ({ state }) => state.historyBytes,
  ),
  kprobe_relay_source_silent_seconds: readGauge(SILENT, ({ silentMs }) => seconds(silentMs)),
  kprobe_relay_serving: readGauge(
    'Whether the relay has all objects and its source sent something in the last 150 s: 1 or 0.',
    ({ isServing }) => Number(isServing),
  ),
  kprobe_relay_nodes: readGauge(
    'Nodes by whether their kernels hold the state of the relay; updating: a change has been missing for less than 10 s.',
    ({ state }) => Array.from(state.reports.states(), ([state, nodes]) => [{ state }, nodes]),
    'state',
  ),
  kprobe_relay_reports_refused: readCounter(
    'Reports of nodes refused since the start, by reason.',
    ({ state }) => Array.from(state.reports.refused, ([reason, reports]) => [{ reason }, reports]),
    'reason',
  ),
  kprobe_relay_network_programming_duration_seconds: histogram(
    'Time from a change until a share of the nodes held it in their kernels; one change a second is measured for each kind. since=trigger starts at the trigger time of the EndpointSlice, since=receipt at its arrival at the relay.',
    LATENCY_BUCKETS,
    'nodes',
    'since',
  ),
  kprobe_relay_sets_nodes: readGauge(
    'Nodes whose Sets (localv1.Sets) are computed.',
    ({ setsNodes }) => setsNodes,
  ),
  kprobe_relay_certificate_expiry_timestamp_seconds: readGauge(
    'When the certificate of the relay expires, in Unix time.',
    ({ expiresMs }) => seconds(expiresMs),
  ),
  ...OVER_SHARE,
} satisfies Rows<RelayNow>

/** Creates the metrics of `kprobe relay`. */
export function createRelayMetrics(
  reports: Pick<RelayState['reports'], 'observed'>,
  now: () => RelayNow,
): MetricSet {
  const set = new MetricSet()
  addProcessMetrics(set)
  const { kprobe_relay_network_programming_duration_seconds: latency } = set.add(RELAY, now)
  reports.observed = ({ share, origin, seconds: value }) =>
    latency.observe({ nodes: String(share), since: origin }, value)
  return set
}
