import { codeOf } from './errors.ts'

/** Signals a process group by the id of its first process. Skips a group that is empty or must not be signaled. */
export function signalGroup(pid: number, name: 'SIGTERM' | 'SIGKILL'): void {
  try {
    process.kill(-pid, name)
  } catch (error) {
    if (!['ESRCH', 'EPERM'].includes(codeOf(error))) throw error
  }
}
