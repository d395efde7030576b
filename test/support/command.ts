import { spawnSync } from 'node:child_process'
import { COMMAND } from './daemon.ts'

/** A command that has ended by itself, or not in time (`code` null). */
export interface Ended {
  readonly code: number | null
  readonly out: string
  readonly err: string
}

export interface RunOptions {
  /** The script; the built command by default. */
  readonly command?: string
  readonly timeoutMs?: number
}

/** Runs the built command to its end. */
export function runCommand(
  args: readonly string[],
  { command = COMMAND, timeoutMs = 30_000 }: RunOptions = {},
): Ended {
  const { status, stdout, stderr } = spawnSync(process.execPath, [command, ...args], {
    encoding: 'utf8',
    timeout: timeoutMs,
  })
  return { code: status, out: stdout, err: stderr }
}
