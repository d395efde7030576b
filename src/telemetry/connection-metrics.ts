import type { Registry } from 'prom-client'
import { errorOf } from '../base/failure-text.ts'
import {
  ConnectionTotals,
  labelsOf,
  type Traffic,
  type TrafficCount,
  type Volume,
} from './connection-totals.ts'
import { metricSet } from './metric-set.ts'

export interface ConnectionMetricsOptions {
  /** Series at most. Beyond, those of endpoints are left out, and then those of Services. */
  readonly seriesMax: number
  /** Reads the kernel's counters. */
  readonly read: () => Promise<readonly TrafficCount[]>
  readonly nowMs: () => number
  /** They could not be read; the numbers stay as they are. */
  readonly failed: (error: Error) => void
}

/** A read costs a dump of the map: there is at most one in this time, however many scrapes. */
const LOOK_MS = 5_000

/**
 * New connections by Service and endpoint, and packets and bytes where the kernel counts them (IPVS does), read from the
 * kernel when the metrics are.
 */
export function addConnectionMetrics(registry: Registry, options: ConnectionMetricsOptions): void {
  const totals = new ConnectionTotals()
  const look = lookOf(totals, options)
  const { filled, asked } = metricSet(registry, 'kprobe_')
  const { seriesMax } = options
  const byPort = ['namespace', 'service', 'service_key', 'port', 'protocol', 'ip_family'] as const
  filled('service_connections_total', 'New connections to a port of a Service.', {
    labelNames: byPort,
    fill: async counter => {
      await look()
      if (totals.series.ports > seriesMax) return
      for (const [port, { connections }] of totals.ports) counter.inc({ ...labelsOf(port) }, connections)
    },
  })
  filled('endpoint_connections_total', 'New connections to an endpoint.', {
    labelNames: [...byPort, 'endpoint'] as const,
    fill: async counter => {
      await look()
      if (totals.series.all > seriesMax) return
      for (const { port, endpoint, traffic } of totals.endpoints)
        counter.inc({ ...labelsOf(port), endpoint }, traffic.connections)
    },
  })
  for (const kind of VOLUMES) {
    filled(`service_${kind.unit}_total`, `${kind.noun} of a port of a Service, by direction.`, {
      labelNames: [...byPort, 'direction'] as const,
      fill: async counter => {
        await look()
        if (!totals.hasVolume || totals.series.ports > seriesMax) return
        for (const [port, traffic] of totals.ports)
          for (const [direction, field] of kind.fields)
            counter.inc({ ...labelsOf(port), direction }, traffic[field])
      },
    })
    filled(`endpoint_${kind.unit}_total`, `${kind.noun} of an endpoint, by direction.`, {
      labelNames: [...byPort, 'endpoint', 'direction'] as const,
      fill: async counter => {
        await look()
        if (!totals.hasVolume || totals.series.all > seriesMax) return
        for (const { port, endpoint, traffic } of totals.endpoints)
          for (const [direction, field] of kind.fields)
            counter.inc({ ...labelsOf(port), endpoint, direction }, traffic[field])
      },
    })
  }
  asked(
    'connection_series',
    'Series of the connection metrics, those beyond --connection-metrics-max included.',
    async () => {
      await look()
      return totals.series.all
    },
  )
}

/** `in` goes to the endpoint, `out` comes from it. */
const VOLUMES: readonly {
  readonly unit: 'packets' | 'bytes'
  readonly noun: string
  readonly fields: readonly (readonly [
    direction: 'in' | 'out',
    field: keyof Traffic & keyof Volume<number>,
  ])[]
}[] = [
  {
    unit: 'packets',
    noun: 'Packets',
    fields: [
      ['in', 'packetsIn'],
      ['out', 'packetsOut'],
    ],
  },
  {
    unit: 'bytes',
    noun: 'Bytes',
    fields: [
      ['in', 'bytesIn'],
      ['out', 'bytesOut'],
    ],
  },
]

/** The read in progress, or a new one when the last is old. */
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
