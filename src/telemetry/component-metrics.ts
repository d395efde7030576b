import { readdir, readFile } from 'node:fs/promises'
import type { BuildInfo } from '../base/build-info.ts'
import { LabelValues, metricSet, type Registry } from './metric-set.ts'

export type ComponentMetrics = ReturnType<typeof createComponentMetrics>

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
  const duration = histogram('request_duration_seconds', 'Time until the status of an answer.', {
    buckets: [0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60],
    labelNames: ['verb', 'host'],
  })
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
  filled('cpu_seconds_total', 'User and system time on the processors, in seconds.', {
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
    // The list itself is read through one.
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
