import { addProcessMetrics } from './component-metrics.ts'
import { metricSet, Registry } from './metric-set.ts'
import { addOverShareMetric, type ServerOverShare } from './server-metrics.ts'

/** Numbers of a relay at the time of a scrape. */
export interface RelayNumbers {
  /** By the kind of their objects. */
  readonly collections: readonly { readonly kind: string; readonly objects: number }[]
  readonly connections: number
  readonly streams: number
  readonly subscriptions: number
  readonly evicted: number
  readonly rejected: number
  readonly refused: number
  readonly historyBytes: number
  /** Time since the last message from the part of the source that has been silent longest; undefined before the first. */
  readonly silentMs: number | undefined
  /** Nodes that ask for a fresh relay are served. */
  readonly isServing: boolean
  /** When the certificate of the relay expires, milliseconds since 1970; undefined without TLS. */
  readonly expiresMs: number | undefined
}

/** Creates the metrics of `kprobe relay`. Gives them in Prometheus' text format. */
export function createRelayMetrics(
  read: () => RelayNumbers,
  overShare: () => readonly ServerOverShare[],
): () => Promise<string> {
  const registry = new Registry()
  addProcessMetrics(registry)
  const { asked, filled } = metricSet(registry, 'kprobe_relay_')
  filled('objects', 'Objects that the relay holds.', {
    labelNames: ['kind'],
    fill: gauge => {
      for (const { kind, objects } of read().collections) gauge.inc({ kind }, objects)
    },
  })
  asked('connections', 'Open connections of readers.', () => read().connections)
  asked('streams', 'Open streams of readers.', () => read().streams)
  asked('subscriptions', 'Collections that readers follow, over all streams.', () => read().subscriptions)
  asked('evicted', 'Readers since the start that were too slow.', () => read().evicted)
  asked('rejected', 'Responses since the start that a reader could not use (NACK).', () => read().rejected)
  asked(
    'refused',
    'Connections and calls rejected since the start because of a limit, or because they are not gRPC.',
    () => read().refused,
  )
  asked('history_bytes', 'Bytes of the changes that readers resume from.', () => read().historyBytes)
  asked(
    'source_silent_seconds',
    'Age of the data: time since the last message from the part of the source that has been silent longest.',
    () => {
      const { silentMs } = read()
      return silentMs === undefined ? undefined : silentMs / 1_000
    },
  )
  asked('serving', 'Whether the relay is complete, and its source was heard of lately.', () =>
    read().isServing ? 1 : 0,
  )
  asked(
    'certificate_expiry_timestamp_seconds',
    'When the certificate that readers are shown expires, in seconds since 1970.',
    () => {
      const { expiresMs } = read()
      return expiresMs === undefined ? undefined : expiresMs / 1_000
    },
  )
  addOverShareMetric(registry, overShare)
  return () => registry.text()
}
