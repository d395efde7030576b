import { readdirSync, readFileSync } from 'node:fs'
import type { Daemon } from '../support/daemon.ts'

/** Memory of a process that is in use, bytes. */
export function memoryOf(pid: number): number {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8')
  return 1024 * Number(/^VmRSS:\s+(\d+) kB$/m.exec(status)?.[1])
}

/** Open descriptors of a process. */
export function descriptorsOf(pid: number): number {
  return readdirSync(`/proc/${pid}/fd`).length
}

/** A process that gets a small part of a processor: it is stopped for most of every period. The result lets it go. */
export function starved(daemon: Daemon, runMs: number, stopMs: number): () => Promise<void> {
  let over = false
  const pause = (ms: number) => new Promise(resolve => setTimeout(resolve, ms))
  const run = async () => {
    while (!over && !daemon.hasExited) {
      daemon.kill('SIGSTOP')
      await pause(stopMs)
      daemon.kill('SIGCONT')
      await pause(runMs)
    }
  }
  const ended = run()
  return async () => {
    over = true
    await ended
  }
}
