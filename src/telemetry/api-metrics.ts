import { Registry } from 'prom-client'
import { metricSet } from './metric-set.ts'
import { addOverShareMetric, type ServerOverShare } from './outward-metrics.ts'
import { addProcessMetrics } from './process-metrics.ts'

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

export function addApiMetrics(registry: Registry, read: () => ApiNumbers): void {
  const { asked } = metricSet(registry, 'kprobe_api_')
  const seconds = (ms: number | undefined) => (ms === undefined ? undefined : ms / 1_000)
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
  return () => registry.metrics()
}
