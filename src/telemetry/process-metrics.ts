import { readdir, readFile } from 'node:fs/promises'
import type { OverShare } from '../base/shares.ts'
import { type MetricSet, type Rows, readCounter, readGauge } from './metric-set.ts'

interface ProcessNumbers extends NodeJS.MemoryUsage {
  /** Share of the time since the last scrape in which the event loop was busy. */
  readonly utilization: number
}

const STARTED_S = Math.round(Date.now() - process.uptime() * 1000) / 1000

/**
 * The process metrics of Prometheus' clients, and those of Node.js that cost nothing between two scrapes: no observers
 * of garbage collection, no timers.
 */
const PROCESS = {
  process_start_time_seconds: readGauge('When the process started, in Unix time.', () => STARTED_S),
  process_cpu_seconds_total: readCounter('User and system CPU time, in seconds.', () => {
    const { user, system } = process.cpuUsage()
    return (user + system) / 1e6
  }),
  process_open_fds: readGauge('Open file descriptors.', openDescriptors),
  process_max_fds: readGauge('File descriptors that may be open.', () =>
    numberIn('/proc/self/limits', /^Max open files\s+(\d+)/m),
  ),
  process_virtual_memory_bytes: readGauge(
    'Virtual memory.',
    async () => 1024 * (await numberIn('/proc/self/status', /^VmSize:\s+(\d+) kB/m)),
  ),
  process_resident_memory_bytes: readGauge('Resident memory.', ({ rss }) => rss),
  nodejs_heap_size_total_bytes: readGauge('Heap of JavaScript.', ({ heapTotal }) => heapTotal),
  nodejs_heap_size_used_bytes: readGauge('Heap of JavaScript in use.', ({ heapUsed }) => heapUsed),
  nodejs_external_memory_bytes: readGauge(
    'Memory outside the heap that its objects hold.',
    ({ external }) => external,
  ),
  nodejs_version_info: readGauge(
    'Version of Node.js; always 1.',
    () => [[{ version: process.version }, 1]],
    'version',
  ),
  nodejs_eventloop_utilization: readGauge(
    'Share of the time since the last scrape in which the event loop was busy.',
    ({ utilization }) => utilization,
  ),
  nodejs_eventloop_lag_seconds: readGauge('Delay of the event loop, measured at this scrape.', async () => {
    const fromMs = performance.now()
    await new Promise(resolve => setImmediate(resolve))
    return (performance.now() - fromMs) / 1000
  }),
} satisfies Rows<ProcessNumbers>

export function addProcessMetrics(set: MetricSet): void {
  let last = performance.eventLoopUtilization()
  set.add(PROCESS, () => {
    const before = last
    last = performance.eventLoopUtilization()
    const { utilization } = performance.eventLoopUtilization(last, before)
    return { ...process.memoryUsage(), utilization }
  })
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

export type OverShares = Pick<ServersState, 'overShare'>

/** The metric of connections over their shares; `kprobe api` and `kprobe relay` have it, too. */
export const OVER_SHARE = {
  kprobe_connections_over_share_total: readCounter(
    'Connections closed since the start because their client, its prefix or its Service exceeded its share of a server.',
    ({ overShare = [] }) =>
      overShare.flatMap(({ server, evicted, refused }): [Record<'server' | 'outcome', string>, number][] => [
        [{ server, outcome: 'evicted' }, evicted],
        [{ server, outcome: 'refused' }, refused],
      ]),
    'server',
    'outcome',
  ),
} satisfies Rows<OverShares>

export const SERVERS = {
  kprobe_ready: readGauge('Whether /healthz answers 200.', ({ ready }) => Number(ready)),
  kprobe_health_check_listeners: readGauge(
    'Open sockets of health check node ports.',
    ({ healthChecks }) => healthChecks?.listening ?? 0,
  ),
  kprobe_health_check_listeners_failed: readGauge(
    'Addresses of health check node ports at which listening failed and is retried.',
    ({ healthChecks }) => healthChecks?.failed ?? 0,
  ),
  kprobe_http_connections_refused: readGauge(
    'Connections closed since the start because of the connection limits.',
    ({ overShare = [] }) => overShare.reduce((sum, { evicted, refused }) => sum + evicted + refused, 0),
  ),
  ...OVER_SHARE,
  kprobe_events_waiting: readGauge(
    'Kubernetes events waiting to be posted.',
    ({ events }) => events?.waiting ?? 0,
  ),
  kprobe_events_taken_total: readCounter(
    'Kubernetes events that the API server accepted.',
    ({ events }) => events?.taken ?? 0,
  ),
  kprobe_events_lost_total: readCounter(
    'Kubernetes events that the API server rejected, or that a limit dropped.',
    ({ events }) => (events?.refused ?? 0) + (events?.dropped ?? 0),
  ),
} satisfies Rows<ServersState>

export function seconds(ms: number | undefined): number | undefined {
  return ms === undefined ? undefined : ms / 1_000
}

export const SILENT =
  'Age of the data: time since the last message from the part of the source that has been silent longest.'
export const REFUSED =
  'Connections and calls rejected since the start because of a limit, or because they are not gRPC.'
