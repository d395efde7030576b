import { spawnSync } from 'node:child_process'
import { hostname } from 'node:os'
import { runCommand as runHere } from '../../src/cli/commands.ts'
import { COMMAND } from './daemon.ts'
import { FakeIo } from './fake-io.ts'
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

/** Runs a command to its end in this process: where a Node.js of its own takes ten seconds to start, as in a guest. */
export async function runInProcess(args: readonly string[]): Promise<Ended> {
  const io = new FakeIo({ hostName: hostname(), processId: process.pid })
  const code = await runHere([...args], io)
  return { code, out: io.stdout, err: io.stderr }
}
