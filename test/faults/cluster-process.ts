import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
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

/** A wall clock of daemons that can be set: it is `shiftMs` ahead of this machine's. */
export interface ShiftedClock {
  readonly nodeArgs: readonly string[]
  /** The file that holds the milliseconds, for programs that the daemon starts. */
  readonly file: string
  set(shiftMs: number): void
}

/** `file` gives paths of files that end with the test. */
export function shiftedClock(file: (name: string) => string): ShiftedClock {
  const [hook, shift] = [file('clock.cjs'), file('shift')]
  const set = (shiftMs: number) => writeFileSync(shift, String(shiftMs))
  set(0)
  writeFileSync(
    hook,
    `const { readFileSync } = require('node:fs')
     const real = Date.now
     Date.now = () => real() + Number(readFileSync(${JSON.stringify(shift)}, 'utf8') || 0)`,
  )
  return { nodeArgs: [`--require=${hook}`], file: shift, set }
}

/** The most memory that a process had in use so far, bytes. */
export function peakOf(pid: number): number {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8')
  return 1024 * Number(/^VmHWM:\s+(\d+) kB$/m.exec(status)?.[1])
}
