import { readFileSync } from 'node:fs'

/** False for a process that has ended, also while nobody has asked for its exit code. */
export function isRunning(pid: number | string): boolean {
  try {
    return !/\) [ZX] /.test(readFileSync(`/proc/${pid}/stat`, 'utf8'))
  } catch {
    return false
  }
}
