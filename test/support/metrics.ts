import * as telemetry from '../../src/telemetry/metrics.ts'

/** What a daemon gives whose parts say nothing. */
export const NO_SOURCES: telemetry.MetricsOptions = {
  build: { version: '0.0.0', commit: '', date: '' },
  features: [],
  staleS: () => undefined,
  isDirect: () => undefined,
  servedStaleS: () => undefined,
  proofAgeS: () => undefined,
  unanswered: () => undefined,
  refused: async () => [],
  servers: () => ({ ready: false }),
  connections: undefined,
  ofMode: () => Promise.resolve({}),
  addMetrics: () => undefined,
}

/** The metrics of a daemon whose parts say nothing, but for those that are given. */
export function createMetrics(options: Partial<telemetry.MetricsOptions> = {}): telemetry.Metrics {
  return telemetry.createMetrics({ ...NO_SOURCES, ...options })
}
