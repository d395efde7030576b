import { readdir, readFile } from 'node:fs/promises'
import type { BuildInfo } from '../base/build-info.ts'
import type { OverShare } from '../base/shares.ts'
import { LabelValues, type MetricsFormat, metricSet, Registry } from './metric-set.ts'

interface ApiRequest {
  readonly method: string
  /** Host and port of the API server. */
  readonly host: string
  /** Undefined for a request without an answer. */
  readonly status: number | undefined
  readonly durationMs: number
}

export interface FeatureState {
  readonly name: string
  /** `ALPHA`, `BETA`; empty for general availability. */
  readonly stage: string
  readonly enabled: boolean
}

export type ComponentMetrics = ReturnType<typeof createComponentMetrics>

/** Creates the metrics of every Kubernetes component (component-base): build, features, and API requests. */
export function createComponentMetrics(
  registry: Registry,
  build: BuildInfo,
  features: readonly FeatureState[],
) {
  addBuildInfo(registry, build)
  const feature = metricSet(registry, 'kubernetes_').gauge('feature_enabled', 'Feature gates: 1 is on.', [
    'name',
    'stage',
  ])
  for (const { name, stage, enabled } of features) feature.set({ name, stage }, enabled ? 1 : 0)
  const { counter, histogram } = metricSet(registry, 'rest_client_')
  const requests = counter('requests_total', 'Requests to the API server by status code.', [
    'code',
    'method',
    'host',
  ])
  const duration = histogram(
    'request_duration_seconds',
    'Time from a request to the API server to the status of its response.',
    {
      buckets: [0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60],
      labelNames: ['verb', 'host'],
    },
  )
  const hosts = new LabelValues()
  return {
    apiRequest({ method, host, status, durationMs }: ApiRequest) {
      const known = hosts.of(host)
      requests.inc({ code: codeText(status), method, host: known })
      duration.observe({ verb: method, host: known }, durationMs / 1000)
    },
  }
}

/** Formats a status as client-go does. */
function codeText(status: number | undefined): string {
  return status !== undefined && status >= 100 && status <= 599 ? String(status) : '<error>'
}

function addBuildInfo(registry: Registry, { version, commit, date }: BuildInfo): void {
  const [major = '', minor = ''] = version.split('.')
  const info = {
    major,
    minor,
    git_version: `v${version}`,
    git_commit: commit,
    git_tree_state: '',
    build_date: date,
    go_version: '',
    compiler: `node ${process.version}`,
    platform: `${process.platform}/${process.arch === 'x64' ? 'amd64' : process.arch}`,
  }
  const own = { version, commit, date, node_version: process.version }
  setInfo(registry, 'kubernetes_', 'Build of this program; always 1.', info)
  setInfo(registry, 'kprobe_', 'Build of kprobe; always 1.', own)
}

function setInfo(registry: Registry, prefix: string, help: string, info: Readonly<Record<string, string>>) {
  metricSet(registry, prefix).gauge('build_info', help, Object.keys(info)).set(info, 1)
}

/**
 * Adds the process metrics of Prometheus' clients, and those of Node.js that cost nothing between two scrapes: no
 * observers of garbage collection, no timers.
 */
export function addProcessMetrics(registry: Registry): void {
  const { filled, asked } = metricSet(registry, 'process_')
  const startedS = Math.round(Date.now() - process.uptime() * 1000) / 1000
  asked('start_time_seconds', 'When the process started, in Unix time.', () => startedS)
  filled('cpu_seconds_total', 'User and system CPU time, in seconds.', {
    labelNames: [],
    fill: counter => {
      const { user, system } = process.cpuUsage()
      counter.inc((user + system) / 1e6)
    },
  })
  asked('open_fds', 'Open file descriptors.', openDescriptors)
  asked('max_fds', 'File descriptors that may be open.', () =>
    numberIn('/proc/self/limits', /^Max open files\s+(\d+)/m),
  )
  asked(
    'virtual_memory_bytes',
    'Virtual memory.',
    async () => 1024 * (await numberIn('/proc/self/status', /^VmSize:\s+(\d+) kB/m)),
  )
  asked('resident_memory_bytes', 'Resident memory.', () => process.memoryUsage.rss())
  metricSet(registry, 'nodejs_').askedOf(process.memoryUsage, {
    heap_size_total_bytes: ['Heap of JavaScript.', ({ heapTotal }) => heapTotal],
    heap_size_used_bytes: ['Heap of JavaScript in use.', ({ heapUsed }) => heapUsed],
    external_memory_bytes: ['Memory outside the heap that its objects hold.', ({ external }) => external],
  })
  addNode(registry)
}

/** Gives NaN if /proc is absent, or no descriptor is left to read it. */
async function openDescriptors(): Promise<number> {
  try {
    // One descriptor belongs to this read.
    return (await readdir('/proc/self/fd')).length - 1
  } catch {
    return Number.NaN
  }
}

async function numberIn(path: string, pattern: RegExp): Promise<number> {
  try {
    return Number(pattern.exec(await readFile(path, 'utf8'))?.[1] ?? Number.NaN)
  } catch {
    return Number.NaN
  }
}

function addNode(registry: Registry): void {
  const { gauge, asked } = metricSet(registry, 'nodejs_')
  const version = gauge('version_info', 'Version of Node.js; always 1.', ['version'])
  version.set({ version: process.version }, 1)
  let last = performance.eventLoopUtilization()
  asked(
    'eventloop_utilization',
    'Share of the time since the last scrape in which the event loop was busy.',
    () => {
      const now = performance.eventLoopUtilization()
      const { utilization } = performance.eventLoopUtilization(now, last)
      last = now
      return utilization
    },
  )
  asked('eventloop_lag_seconds', 'Delay of the event loop, measured at this scrape.', async () => {
    const fromMs = performance.now()
    await new Promise(resolve => setImmediate(resolve))
    return (performance.now() - fromMs) / 1000
  })
}

/** Numbers of the servers and of the event recorder at the time of a scrape; undefined for a part that does not run. */
export interface ServersState {
  /** Load balancers may send connections here (/healthz). */
  readonly ready: boolean
  readonly healthChecks?: { readonly listening: number; readonly failed: number } | undefined
  readonly overShare?: readonly ServerOverShare[]
  readonly events?:
    | { readonly taken: number; readonly refused: number; readonly dropped: number; readonly waiting: number }
    | undefined
}

export interface ServerOverShare extends OverShare {
  readonly server: 'healthz' | 'metrics' | 'health_check_node_ports' | 'admin' | 'api' | 'relay' | 'ui'
}

/** Adds the metric of connections over their shares; `kprobe api` has it, too. */
function addOverShareMetric(registry: Registry, read: () => readonly ServerOverShare[]): void {
  metricSet(registry, 'kprobe_').filled(
    'connections_over_share_total',
    'Connections closed since the start because their client, its prefix or its Service exceeded its share of a server.',
    {
      labelNames: ['server', 'outcome'],
      fill: counter => {
        for (const { server, evicted, refused } of read()) {
          counter.inc({ server, outcome: 'evicted' }, evicted)
          counter.inc({ server, outcome: 'refused' }, refused)
        }
      },
    },
  )
}

/** Adds metrics of the servers and of events, which each scrape reads. */
export function addServerMetrics(registry: Registry, read: () => ServersState): void {
  const { asked, askedOf, filled } = metricSet(registry, 'kprobe_')
  askedOf(read, {
    ready: ['Whether /healthz answers 200.', ({ ready }) => Number(ready)],
    health_check_listeners: [
      'Open sockets of health check node ports.',
      ({ healthChecks }) => healthChecks?.listening ?? 0,
    ],
    health_check_listeners_failed: [
      'Addresses of health check node ports at which listening failed and is retried.',
      ({ healthChecks }) => healthChecks?.failed ?? 0,
    ],
    http_connections_refused: [
      'Connections closed since the start because of the connection limits.',
      ({ overShare = [] }) => overShare.reduce((sum, { evicted, refused }) => sum + evicted + refused, 0),
    ],
  })
  addOverShareMetric(registry, () => read().overShare ?? [])
  const events = () => read().events ?? NO_EVENTS
  asked('events_waiting', 'Kubernetes events waiting to be posted.', () => events().waiting)
  filled('events_taken_total', 'Kubernetes events that the API server accepted.', {
    labelNames: [],
    fill: metric => metric.inc(events().taken),
  })
  filled('events_lost_total', 'Kubernetes events that the API server rejected, or that a limit dropped.', {
    labelNames: [],
    fill: metric => metric.inc(events().refused + events().dropped),
  })
}

const NO_EVENTS = { taken: 0, refused: 0, dropped: 0, waiting: 0 } as const

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

function seconds(ms: number | undefined): number | undefined {
  return ms === undefined ? undefined : ms / 1_000
}

export function addApiMetrics(registry: Registry, read: () => ApiNumbers): void {
  metricSet(registry, 'kprobe_api_').askedOf(read, {
    state_number: [
      'Number of the state that back ends receive; it grows with each change.',
      ({ number }) => number,
    ],
    services: ['Services in the state that back ends receive.', ({ services }) => services],
    endpoints: ['Endpoints in the state that back ends receive.', ({ endpoints }) => endpoints],
    state_age_seconds: [
      'Time since the state that back ends receive changed.',
      ({ sinceMs }) => seconds(sinceMs),
    ],
    source_silent_seconds: [SILENT, ({ silentMs }) => seconds(silentMs)],
    source_connected: [
      'Whether the source is complete and has no error.',
      ({ sourceConnected }) => Number(sourceConnected),
    ],
    streams: ['Open streams of back ends.', ({ streams = 0 }) => streams],
    connections: ['Open connections of back ends.', ({ connections = 0 }) => connections],
    refused: [REFUSED, ({ refused = 0 }) => refused],
  })
}

const SILENT =
  'Age of the data: time since the last message from the part of the source that has been silent longest.'
const REFUSED =
  'Connections and calls rejected since the start because of a limit, or because they are not gRPC.'

/** Creates the metrics of `kprobe api`. Gives the text of a scrape. */
export function createApiMetrics(
  read: () => ApiNumbers,
  overShare: () => readonly ServerOverShare[],
): (format?: MetricsFormat) => Promise<string> {
  const registry = new Registry()
  addProcessMetrics(registry)
  addApiMetrics(registry, read)
  addOverShareMetric(registry, overShare)
  return format => registry.text(format)
}

export interface RelayNumbers {
  readonly collections: readonly {
    readonly kind: string
    readonly objects: number
    /** Objects of the source that cannot be relayed. */
    readonly refused: number
  }[]
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
  /** Nodes that request a fresh relay are served. */
  readonly isServing: boolean
  /** Nodes whose Sets are computed; undefined where they are not served. */
  readonly setsNodes: number | undefined
  readonly nodes: Iterable<readonly [state: string, nodes: number]>
  /** Reports of nodes that were not taken, since the start, by the reason. */
  readonly reportsRefused: Iterable<readonly [reason: string, reports: number]>
  /** Expiry of the relay's certificate, milliseconds since 1970; undefined without TLS. */
  readonly expiresMs: number | undefined
}

/** The latency of a change until a share of all nodes had it in their kernels. */
interface NodesLatency {
  /** The share of all nodes; 1 for all of them. */
  readonly share: number
  /** The change itself bears its time (trigger), or that of its arrival at the relay counts (receipt). */
  readonly origin: 'trigger' | 'receipt'
  readonly seconds: number
}

/** Up to the time after which a change no longer waits for nodes. */
const LATENCY_BUCKETS = [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60] as const

/** Creates the metrics of `kprobe relay`. Gives the text of a scrape. */
export function createRelayMetrics(
  read: () => RelayNumbers,
  overShare: () => readonly ServerOverShare[],
  follow: (observe: (latency: NodesLatency) => void) => void = () => undefined,
): (format?: MetricsFormat) => Promise<string> {
  const registry = new Registry()
  addProcessMetrics(registry)
  const { askedOf, filled } = metricSet(registry, 'kprobe_relay_')
  filled('objects', 'Objects that the relay holds.', {
    labelNames: ['kind'],
    fill: gauge => {
      for (const { kind, objects } of read().collections) gauge.inc({ kind }, objects)
    },
  })
  filled('objects_refused', 'Objects of the source that the relay cannot read, and does not serve.', {
    labelNames: ['kind'],
    fill: gauge => {
      for (const { kind, refused } of read().collections) gauge.inc({ kind }, refused)
    },
  })
  askedOf(read, {
    connections: ['Open connections of readers.', its => its.connections],
    streams: ['Open streams of readers.', its => its.streams],
    subscriptions: ['Collections that readers follow, over all streams.', its => its.subscriptions],
    evicted: ['Readers evicted since the start because they were too slow.', its => its.evicted],
    rejected: ['Responses that readers rejected since the start (NACK).', its => its.rejected],
    unauthorized: [
      'Calls rejected since the start because they had neither a certificate of a node nor a valid token.',
      its => its.unauthorized,
    ],
    refused: [REFUSED, its => its.refused],
    history_bytes: ['Bytes of the change history from which readers resume.', its => its.historyBytes],
    source_silent_seconds: [SILENT, its => seconds(its.silentMs)],
    serving: [
      'Whether the relay has all objects and its source sent something in the last 150 s: 1 or 0.',
      its => Number(its.isServing),
    ],
  })
  addNodeMetrics(registry, read, follow)
  askedOf(read, {
    sets_nodes: ['Nodes whose Sets (localv1.Sets) are computed.', its => its.setsNodes],
    certificate_expiry_timestamp_seconds: [
      'When the certificate of the relay expires, in Unix time.',
      its => seconds(its.expiresMs),
    ],
  })
  addOverShareMetric(registry, overShare)
  return format => registry.text(format)
}

function addNodeMetrics(
  registry: Registry,
  read: () => RelayNumbers,
  follow: (observe: (latency: NodesLatency) => void) => void,
): void {
  const { filled, levels, histogram } = metricSet(registry, 'kprobe_relay_')
  levels(
    'nodes',
    'Nodes by whether their kernels hold the state of the relay; updating: a change has been missing for less than 10 s.',
    {
      labelNames: ['state'],
      fill: gauge => {
        for (const [state, nodes] of read().nodes) gauge.set({ state }, nodes)
      },
    },
  )
  filled('reports_refused', 'Reports of nodes refused since the start, by reason.', {
    labelNames: ['reason'],
    fill: counter => {
      for (const [reason, reports] of read().reportsRefused) counter.inc({ reason }, reports)
    },
  })
  const latency = histogram(
    'network_programming_duration_seconds',
    'Time from a change until a share of the nodes held it in their kernels; one change a second is measured for each kind. since=trigger starts at the trigger time of the EndpointSlice, since=receipt at its arrival at the relay.',
    { buckets: LATENCY_BUCKETS, labelNames: ['nodes', 'since'] },
  )
  follow(({ share, origin, seconds }) => latency.observe({ nodes: String(share), since: origin }, seconds))
}
