import { readdirSync, readFileSync } from 'node:fs'

/** USER_HZ, which Linux shows to user space whatever the kernel's own tick is. */
const TICKS_PER_SECOND = 100

/** Milliseconds of processor time of a process, of its threads that run, and of its children that have ended. */
export function cpuMs(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
  // The name, in parentheses, may hold anything; cutime and cstime are fields 16 and 17.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  const ticks = Number(fields[13]) + Number(fields[14])
  const threads = readdirSync(`/proc/${pid}/task`).map(thread => threadNs(pid, thread))
  return threads.reduce((sum, each) => sum + each, 0) / 1e6 + (ticks * 1000) / TICKS_PER_SECOND
}

/** 0 for a thread that has ended meanwhile. */
function threadNs(pid: number, thread: string): number {
  try {
    return Number(readFileSync(`/proc/${pid}/task/${thread}/schedstat`, 'utf8').split(' ')[0])
  } catch {
    return 0
  }
}

/** Memory of the kernel: what its allocators of objects, pages and processors hold. */
export function kernelMiB(): number {
  const text = readFileSync('/proc/meminfo', 'utf8')
  const fields = ['SUnreclaim', 'VmallocUsed', 'Percpu']
  const kibibytes = fields.map(field => Number(new RegExp(`^${field}:\\s+(\\d+)`, 'm').exec(text)?.[1] ?? 0))
  return kibibytes.reduce((sum, each) => sum + each, 0) / 1024
}

/** 0 for a process that is gone. */
export function rssMiB(pid: number): number {
  return statusMiB(pid, 'VmRSS')
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
