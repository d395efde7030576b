import { errorOf } from '../base/errors.ts'
import { ConnectionTotals, labelsOf, type Traffic, type TrafficCount } from './connection-totals.ts'
import { type Counter, metricSet, type Registry } from './metric-set.ts'

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
  for (const { unit, ofPort, ofEndpoint, fields } of COUNTS) {
    const directions = fields.length > 1 ? (['direction'] as const) : []
    const add = (counter: Counter<string>, labels: Readonly<Record<string, string>>, traffic: Traffic) => {
      for (const [direction, field] of fields)
        counter.inc(fields.length > 1 ? { ...labels, direction } : labels, traffic[field])
    }
    const isCounted = () => unit === 'connections' || totals.hasVolume
    filled(`service_${unit}_total`, ofPort, {
      labelNames: [...byPort, ...directions],
      fill: async counter => {
        await refresh()
        if (!isCounted() || totals.series.ports > seriesMax) return
        for (const [port, traffic] of totals.ports) add(counter, { ...labelsOf(port) }, traffic)
      },
    })
    filled(`endpoint_${unit}_total`, ofEndpoint, {
      labelNames: [...byPort, 'endpoint', ...directions],
      fill: async counter => {
        await refresh()
        if (!isCounted() || totals.series.all > seriesMax) return
        for (const { port, endpoint, traffic } of totals.endpoints)
          add(counter, { ...labelsOf(port), endpoint }, traffic)
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
const COUNTS: readonly {
  readonly unit: 'connections' | 'packets' | 'bytes'
  readonly ofPort: string
  readonly ofEndpoint: string
  readonly fields: readonly (readonly [direction: '' | 'in' | 'out', field: keyof Traffic])[]
}[] = [
  {
    unit: 'connections',
    ofPort: 'New connections to a port of a Service.',
    ofEndpoint: 'New connections to an endpoint.',
    fields: [['', 'connections']],
  },
  {
    unit: 'packets',
    ofPort: 'Packets of a port of a Service, by direction.',
    ofEndpoint: 'Packets of an endpoint, by direction.',
    fields: [
      ['in', 'packetsIn'],
      ['out', 'packetsOut'],
    ],
  },
  {
    unit: 'bytes',
    ofPort: 'Bytes of a port of a Service, by direction.',
    ofEndpoint: 'Bytes of an endpoint, by direction.',
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
