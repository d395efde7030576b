import type { Registry } from 'prom-client'
import { errorOf } from '../base/thrown.ts'
import { type ConnectionCountLike, ConnectionTotals, labelsOf } from './connection-totals.ts'
import { metricSet } from './metric-set.ts'

export interface ConnectionMetricsOptions {
  /** Series at most. Beyond, those of endpoints are left out, and then those of Services. */
  readonly seriesMax: number
  /** Reads the kernel's counters. */
  readonly read: () => Promise<readonly ConnectionCountLike[]>
  readonly nowMs: () => number
  /** They could not be read; the numbers stay as they are. */
  readonly failed: (error: Error) => void
}

/** A look costs a dump of the map: however often somebody scrapes, there is one in this time. */
const LOOK_MS = 5_000

/** New connections by Service and endpoint, read from the kernel when the metrics are. */
export function addConnectionMetrics(registry: Registry, options: ConnectionMetricsOptions): void {
  const totals = new ConnectionTotals()
  const look = lookOf(totals, options)
  const { filled, asked } = metricSet(registry, 'kprobe_')
  const { seriesMax } = options
  const byPort = ['service', 'port', 'protocol', 'ip_family'] as const
  filled('service_connections_total', 'New connections to a port of a Service.', {
    labelNames: byPort,
    fill: async counter => {
      await look()
      if (totals.ports.size > seriesMax) return
      for (const [port, connections] of totals.ports) counter.inc({ ...labelsOf(port) }, connections)
    },
  })
  filled('endpoint_connections_total', 'New connections to an endpoint.', {
    labelNames: [...byPort, 'endpoint'] as const,
    fill: async counter => {
      await look()
      if (totals.size > seriesMax) return
      for (const { port, endpoint, connections } of totals.endpoints)
        counter.inc({ ...labelsOf(port), endpoint }, connections)
    },
  })
  asked('connection_series', 'Series that connections have, or would have without the limit.', async () => {
    await look()
    return totals.size
  })
}

/** The look that is under way, or another one when the last is long ago. */
function lookOf(totals: ConnectionTotals, options: ConnectionMetricsOptions): () => Promise<void> {
  const { read, nowMs, failed } = options
  let lookedMs = Number.NEGATIVE_INFINITY
  let running: Promise<void> = Promise.resolve()
  const look = async () => {
    try {
      totals.take(await read())
    } catch (thrown) {
      failed(errorOf(thrown))
    }
  }
  return () => {
    if (nowMs() - lookedMs >= LOOK_MS) {
      lookedMs = nowMs()
      running = look()
    }
    return running
  }
}
