import { execFileSync, spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { hostname } from 'node:os'
import { runCommand as runHere } from '../../src/commands.ts'
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
}

export function runCommand(args: readonly string[], { command = COMMAND }: RunOptions = {}): Ended {
  const { status, stdout, stderr } = spawnSync(process.execPath, [command, ...args], {
    encoding: 'utf8',
    timeout: patientMs(60_000),
  })
  return { code: status, out: stdout, err: stderr }
}

/**
 * Runs a command to its end in this process: one of its own takes a third of a second to start, in a guest ten. What the command
 * logs goes to the standard error of this process.
 */
export async function runInProcess(args: readonly string[]): Promise<Ended> {
  passAsBuild(args)
  const io = new FakeIo({ hostName: hostname(), processId: process.pid })
  const code = await runHere([...args], io)
  return { code, out: io.stdout, err: io.stderr }
}

/** Runs another program to its end, and gives what it prints. */
export function tool(name: string, ...args: readonly string[]): string {
  return execFileSync(name, args, { encoding: 'utf8' })
}

/** Daemons answer only commands of their own version: where one listens, this process has the version of the build. */
function passAsBuild(args: readonly string[]): void {
  const [, socket = ''] = /--admin-socket=(\S+)/.exec(args.join(' ')) ?? []
  if (process.env.KPROBE_VERSION !== undefined || !existsSync(socket)) return
  const text = execFileSync(process.execPath, [COMMAND, 'version', '-o', 'json'], { encoding: 'utf8' })
  const { version, commit, date } = JSON.parse(text)
  Object.assign(process.env, { KPROBE_VERSION: version, KPROBE_COMMIT: commit, KPROBE_COMMIT_DATE: date })
}
