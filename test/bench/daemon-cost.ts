import { readdirSync, readFileSync } from 'node:fs'

/** Processor time of a process so far, milliseconds: of the main thread, and of all others that live. */
export interface CpuMs {
  readonly main: number
  readonly others: number
}

/** By the scheduler's own clock: the ticks of /proc/PID/stat are longer than what a change takes. */
export function cpuOf(pid: number): CpuMs {
  const others = readdirSync(`/proc/${pid}/task`).filter(thread => thread !== String(pid))
  return { main: threadMs(pid, String(pid)), others: sum(others.map(thread => threadMs(pid, thread))) }
}

export function between(before: CpuMs, after: CpuMs): CpuMs {
  return { main: after.main - before.main, others: after.others - before.others }
}

/** A thread may end meanwhile. */
function threadMs(pid: number, thread: string): number {
  try {
    return Number(readFileSync(`/proc/${pid}/task/${thread}/schedstat`, 'utf8').split(' ')[0]) / 1e6
  } catch {
    return 0
  }
}

/** MiB of a process that are in memory. */
export interface Memory {
  readonly rss: number
  readonly anonymous: number
  /** The most there was so far. */
  readonly peak: number
}

export function memoryOf(pid: number): Memory {
  return {
    rss: mib(readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8'), 'Rss'),
    anonymous: mib(readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8'), 'Anonymous'),
    peak: mib(readFileSync(`/proc/${pid}/status`, 'utf8'), 'VmHWM'),
  }
}

function mib(text: string, field: string): number {
  return Number(new RegExp(`^${field}:\\s+(\\d+) kB$`, 'm').exec(text)?.[1] ?? 0) / 1024
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0)
}
