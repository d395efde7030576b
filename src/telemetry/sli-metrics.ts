import { Registry } from 'prom-client'
import { metricSet } from './metric-set.ts'
import type { SliSource } from './metrics-server.ts'

/** Creates the registry of /metrics/slis, with the results of /healthz of the metrics port. */
export function createSliMetrics(): SliSource {
  const registry = new Registry()
  const { counter, gauge } = metricSet(registry, 'kubernetes_')
  const last = gauge('healthcheck', 'Result of a health check: 1 is good.', ['name', 'type'])
  const total = counter('healthchecks_total', 'Health checks by result.', ['name', 'type', 'status'])
  const check = { name: 'ping', type: 'healthz' } as const
  return {
    checked() {
      last.set(check, 1)
      total.inc({ ...check, status: 'success' })
    },
    text: () => registry.metrics(),
  }
}
