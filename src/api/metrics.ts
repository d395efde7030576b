import { MetricSet, type Rows, readGauge } from '../telemetry/metric-set.ts'
import { addProcessMetrics } from '../telemetry/process-metrics.ts'
import { OVER_SHARE, type OverShares, REFUSED, SILENT, seconds } from '../telemetry/server-metrics.ts'
import type { FeedStatus } from './feed.ts'
import type { ApiServerCounts } from './grpc/server.ts'

/** The API at the time of a scrape; counts are absent where it does not listen. */
export type ApiNow = FeedStatus & Partial<ApiServerCounts>

export const API = {
  kprobe_api_state_number: readGauge(
    'Number of the state that back ends receive; it grows with each change.',
    its => its.number,
  ),
  kprobe_api_services: readGauge('Services in the state that back ends receive.', its => its.services),
  kprobe_api_endpoints: readGauge('Endpoints in the state that back ends receive.', its => its.endpoints),
  kprobe_api_state_age_seconds: readGauge('Time since the state that back ends receive changed.', its =>
    seconds(its.sinceMs),
  ),
  kprobe_api_source_silent_seconds: readGauge(SILENT, its => seconds(its.silentMs)),
  kprobe_api_source_connected: readGauge('Whether the source is complete and has no error.', its =>
    Number(its.sourceConnected),
  ),
  kprobe_api_streams: readGauge('Open streams of back ends.', ({ streams = 0 }) => streams),
  kprobe_api_connections: readGauge('Open connections of back ends.', ({ connections = 0 }) => connections),
  kprobe_api_refused: readGauge(REFUSED, ({ refused = 0 }) => refused),
} satisfies Rows<ApiNow>

/** Creates the metrics of `kprobe api`. */
export function createApiMetrics(now: () => ApiNow & OverShares): MetricSet {
  const set = new MetricSet()
  addProcessMetrics(set)
  set.add({ ...API, ...OVER_SHARE }, now)
  return set
}
