import { spawnSync } from 'node:child_process'
import { COMMAND } from './daemon.ts'
import { patientMs } from './patience.ts'

/** A command that has ended by itself, or not in time (`code` null). */
export interface Ended {
  readonly code: number | null
  readonly out: string
  readonly err: string
}

export interface RunOptions {
  /** The script; the built command by default. */
  readonly command?: string
  /** Of an idle machine. */
  readonly limitMs?: number
}

/** Runs the built command to its end. */
export function runCommand(
  args: readonly string[],
  { command = COMMAND, limitMs = 60_000 }: RunOptions = {},
): Ended {
  const { status, stdout, stderr } = spawnSync(process.execPath, [command, ...args], {
    encoding: 'utf8',
    timeout: patientMs(limitMs),
  })
  return { code: status, out: stdout, err: stderr }
}
