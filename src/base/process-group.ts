import { codeOf } from './errors.ts'

/**
 * Signals a process group by the id of its first process. A group that is empty, or of which this process may signal
 * nobody, is left as it is.
 */
export function signalGroup(pid: number, name: 'SIGTERM' | 'SIGKILL'): void {
  try {
    process.kill(-pid, name)
  } catch (error) {
    if (!['ESRCH', 'EPERM'].includes(codeOf(error))) throw error
  }
}
