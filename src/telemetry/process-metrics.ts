import { readdir, readFile } from 'node:fs/promises'
import type { Registry } from 'prom-client'
import { metricSet } from './metric-set.ts'

/**
 * Adds the process metrics of Prometheus' clients, and those of Node.js that cost nothing between two scrapes: no
 * observers of garbage collection, no timers.
 */
export function addProcessMetrics(registry: Registry): void {
  addProcess(registry)
  addMemory(registry)
  addNode(registry)
}

function addProcess(registry: Registry): void {
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

function addMemory(registry: Registry): void {
  metricSet(registry, 'process_').asked('resident_memory_bytes', 'Resident memory.', () =>
    process.memoryUsage.rss(),
  )
  const { asked } = metricSet(registry, 'nodejs_')
  asked('heap_size_total_bytes', 'Heap of JavaScript.', () => process.memoryUsage().heapTotal)
  asked('heap_size_used_bytes', 'Heap of JavaScript in use.', () => process.memoryUsage().heapUsed)
  asked(
    'external_memory_bytes',
    'Memory outside the heap that its objects hold.',
    () => process.memoryUsage().external,
  )
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
