import { errorOf } from '../base/errors.ts'
import {
  ConnectionTotals,
  labelsOf,
  type Traffic,
  type TrafficCount,
  type Volume,
} from './connection-totals.ts'
import { metricSet, type Registry } from './metric-set.ts'

export interface ConnectionMetricsOptions {
  /** Maximum number of series. Above it the series of endpoints are omitted first, then those of Services. */
  readonly seriesMax: number
  /** Reads the kernel's counters. */
  readonly read: () => Promise<readonly TrafficCount[]>
  readonly nowMs: () => number
  /** The counters could not be read; the metrics keep their values. */
  readonly failed: (error: Error) => void
}

/** Minimum time between two reads, each of which dumps a map of the kernel. */
const READ_MS = 5_000

/**
 * Adds metrics of new connections by Service and endpoint, and of packets and bytes if the kernel counts them (IPVS
 * does). A scrape reads them from the kernel.
 */
export function addConnectionMetrics(registry: Registry, options: ConnectionMetricsOptions): void {
  const totals = new ConnectionTotals()
  const refresh = readerOf(totals, options)
  const { filled, asked } = metricSet(registry, 'kprobe_')
  const { seriesMax } = options
  const byPort = ['namespace', 'service', 'service_key', 'port', 'protocol', 'ip_family'] as const
  filled('service_connections_total', 'New connections to a port of a Service.', {
    labelNames: byPort,
    fill: async counter => {
      await refresh()
      if (totals.series.ports > seriesMax) return
      for (const [port, { connections }] of totals.ports) counter.inc({ ...labelsOf(port) }, connections)
    },
  })
  filled('endpoint_connections_total', 'New connections to an endpoint.', {
    labelNames: [...byPort, 'endpoint'] as const,
    fill: async counter => {
      await refresh()
      if (totals.series.all > seriesMax) return
      for (const { port, endpoint, traffic } of totals.endpoints)
        counter.inc({ ...labelsOf(port), endpoint }, traffic.connections)
    },
  })
  for (const kind of VOLUMES) {
    filled(`service_${kind.unit}_total`, `${kind.noun} of a port of a Service, by direction.`, {
      labelNames: [...byPort, 'direction'] as const,
      fill: async counter => {
        await refresh()
        if (!totals.hasVolume || totals.series.ports > seriesMax) return
        for (const [port, traffic] of totals.ports)
          for (const [direction, field] of kind.fields)
            counter.inc({ ...labelsOf(port), direction }, traffic[field])
      },
    })
    filled(`endpoint_${kind.unit}_total`, `${kind.noun} of an endpoint, by direction.`, {
      labelNames: [...byPort, 'endpoint', 'direction'] as const,
      fill: async counter => {
        await refresh()
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
      await refresh()
      return totals.series.all
    },
  )
}

/** Direction `in` is to the endpoint, `out` is from it. */
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

/** Gives a function that joins the read in progress, or starts a new one if the last is old. */
function readerOf(totals: ConnectionTotals, options: ConnectionMetricsOptions): () => Promise<void> {
  const { read, nowMs, failed } = options
  let startedMs = Number.NEGATIVE_INFINITY
  let running: Promise<void> = Promise.resolve()
  const update = async () => {
    try {
      totals.take(await read())
    } catch (thrown) {
      failed(errorOf(thrown))
    }
  }
  return () => {
    if (nowMs() - startedMs >= READ_MS) {
      startedMs = nowMs()
      running = update()
    }
    return running
  }
}
