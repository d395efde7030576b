import { Registry } from 'prom-client'
import { metricSet } from './metric-set.ts'
import { addOverShareMetric, type ServerOverShare } from './outward-metrics.ts'
import { addProcessMetrics } from './process-metrics.ts'

/** What the API for back ends has to say when the metrics are read. */
export interface ApiNumbers {
  readonly number: number
  readonly services: number
  readonly endpoints: number
  /** Since the state last changed; undefined when there is none yet. */
  readonly sinceMs: number | undefined
  /** Since the part of the source that has been silent longest said its last word. */
  readonly silentMs: number | undefined
  readonly sourceConnected: boolean
  readonly streams?: number
  readonly connections?: number
  readonly refused?: number
}

/** Present only where the API is served. */
export function addApiMetrics(registry: Registry, look: () => ApiNumbers): void {
  const { asked } = metricSet(registry, 'kprobe_api_')
  const seconds = (ms: number | undefined) => (ms === undefined ? undefined : ms / 1_000)
  asked(
    'state_number',
    'Number of the state that back ends receive; it grows with each change.',
    () => look().number,
  )
  asked('services', 'Services in that state.', () => look().services)
  asked('endpoints', 'Endpoints in that state.', () => look().endpoints)
  asked('state_age_seconds', 'Time since that state changed.', () => seconds(look().sinceMs))
  asked(
    'source_silent_seconds',
    'Age of the data: time since the last message from the part of the source that has been silent longest.',
    () => seconds(look().silentMs),
  )
  asked('source_connected', 'Whether the source is complete and has no error.', () =>
    look().sourceConnected ? 1 : 0,
  )
  asked('streams', 'Open streams of back ends.', () => look().streams ?? 0)
  asked('connections', 'Open connections of back ends.', () => look().connections ?? 0)
  asked(
    'refused',
    'Connections and calls rejected since the start because of a limit, or because they are not gRPC.',
    () => look().refused ?? 0,
  )
}

/** The metrics of `kprobe api`, in Prometheus' text format. */
export function createApiMetrics(
  look: () => ApiNumbers,
  overShare: () => readonly ServerOverShare[],
): () => Promise<string> {
  const registry = new Registry()
  addProcessMetrics(registry)
  addApiMetrics(registry, look)
  addOverShareMetric(registry, overShare)
  return () => registry.metrics()
}
