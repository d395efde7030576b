import { readdirSync, readFileSync } from 'node:fs'

/** USER_HZ, which Linux shows to user space whatever the kernel's own tick is. */
const TICKS_PER_SECOND = 100

/** Milliseconds of processor time of a process and of its children that have ended. */
export function cpuMs(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
  // The name, in parentheses, may hold anything; utime, stime, cutime and cstime are fields 14 to 17.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  const ticks = fields.slice(11, 15).reduce((sum, field) => sum + Number(field), 0)
  return (ticks * 1000) / TICKS_PER_SECOND
}

/** 0 for a process that is gone. */
export function rssMiB(pid: number): number {
  return statusMiB(pid, 'VmRSS')
}

/** The most that a process had in use so far; 0 for one that is gone. */
export function peakMiB(pid: number): number {
  return statusMiB(pid, 'VmHWM')
}

/** Process ids, those of grandchildren not among them. */
export function childrenOf(pid: number): readonly number[] {
  try {
    const threads = readdirSync(`/proc/${pid}/task`)
    const texts = threads.map(thread => readFileSync(`/proc/${pid}/task/${thread}/children`, 'utf8'))
    return texts.flatMap(text => text.trim().split(' ').filter(Boolean).map(Number))
  } catch {
    return []
  }
}

function statusMiB(pid: number, field: string): number {
  try {
    const match = new RegExp(`^${field}:\\s+(\\d+) kB$`, 'm').exec(
      readFileSync(`/proc/${pid}/status`, 'utf8'),
    )
    return Number(match?.[1] ?? 0) / 1024
  } catch {
    return 0
  }
}
