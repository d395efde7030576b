import { addProcessMetrics } from './component-metrics.ts'
import { metricSet, Registry } from './metric-set.ts'
import { addOverShareMetric, type ServerOverShare, seconds } from './server-metrics.ts'

/** Numbers of a relay at the time of a scrape. */
export interface RelayNumbers {
  /** By the kind of their objects. */
  readonly collections: readonly { readonly kind: string; readonly objects: number }[]
  readonly connections: number
  readonly streams: number
  readonly subscriptions: number
  readonly evicted: number
  readonly rejected: number
  readonly unauthorized: number
  readonly refused: number
  readonly historyBytes: number
  /** Time since the last message from the part of the source that has been silent longest; undefined before the first. */
  readonly silentMs: number | undefined
  /** Nodes that ask for a fresh relay are served. */
  readonly isServing: boolean
  /** Nodes whose Sets are computed; undefined where they are not served. */
  readonly setsNodes: number | undefined
  /** Nodes by the state of their kernels. */
  readonly nodes: Iterable<readonly [state: string, nodes: number]>
  /** Reports of nodes that were not taken, since the start, by the reason. */
  readonly reportsRefused: Iterable<readonly [reason: string, reports: number]>
  /** When the certificate of the relay expires, milliseconds since 1970; undefined without TLS. */
  readonly expiresMs: number | undefined
}

/** How long a change took until the kernels of a share of all nodes held it. */
export interface NodesLatency {
  /** Of all nodes; 1 for all of them. */
  readonly share: number
  /** The change itself bears its time (trigger), or that of its arrival at the relay counts (receipt). */
  readonly origin: 'trigger' | 'receipt'
  readonly seconds: number
}

/** Up to the time after which a change no longer waits for nodes. */
const LATENCY_BUCKETS = [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60] as const

/** Creates the metrics of `kprobe relay`. Gives them in Prometheus' text format. */
export function createRelayMetrics(
  read: () => RelayNumbers,
  overShare: () => readonly ServerOverShare[],
  follow: (observe: (latency: NodesLatency) => void) => void = () => undefined,
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
    'unauthorized',
    'Calls since the start without a certificate of a node and without a valid token.',
    () => read().unauthorized,
  )
  asked(
    'refused',
    'Connections and calls rejected since the start because of a limit, or because they are not gRPC.',
    () => read().refused,
  )
  asked('history_bytes', 'Bytes of the changes that readers resume from.', () => read().historyBytes)
  asked(
    'source_silent_seconds',
    'Age of the data: time since the last message from the part of the source that has been silent longest.',
    () => seconds(read().silentMs),
  )
  asked('serving', 'Whether the relay is complete, and its source was heard of lately.', () =>
    read().isServing ? 1 : 0,
  )
  addNodeMetrics(registry, read, follow)
  asked('sets_nodes', 'Nodes whose Sets (localv1.Sets) are computed.', () => read().setsNodes)
  asked(
    'certificate_expiry_timestamp_seconds',
    'When the certificate that readers are shown expires, in seconds since 1970.',
    () => seconds(read().expiresMs),
  )
  addOverShareMetric(registry, overShare)
  return () => registry.text()
}

function addNodeMetrics(
  registry: Registry,
  read: () => RelayNumbers,
  follow: (observe: (latency: NodesLatency) => void) => void,
): void {
  const { filled, levels, histogram } = metricSet(registry, 'kprobe_relay_')
  levels(
    'nodes',
    'Nodes by what their kernels hold of the state that the relay has; updating: they have lacked a change for less than 10 s.',
    {
      labelNames: ['state'],
      fill: gauge => {
        for (const [state, nodes] of read().nodes) gauge.set({ state }, nodes)
      },
    },
  )
  filled('reports_refused', 'Reports of nodes that were not taken, since the start.', {
    labelNames: ['reason'],
    fill: counter => {
      for (const [reason, reports] of read().reportsRefused) counter.inc({ reason }, reports)
    },
  })
  const latency = histogram(
    'network_programming_duration_seconds',
    'Time from a change until the kernels of a share of all nodes held it, of one change a second and kind; since=trigger: from the time that the EndpointSlice bears; since=receipt: from its arrival at the relay.',
    { buckets: LATENCY_BUCKETS, labelNames: ['nodes', 'since'] },
  )
  follow(({ share, origin, seconds }) => latency.observe({ nodes: String(share), since: origin }, seconds))
}
