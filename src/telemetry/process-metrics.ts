import { readdir, readFile } from 'node:fs/promises'
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
