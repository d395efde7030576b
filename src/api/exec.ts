import { type ChildProcessWithoutNullStreams as Child, type ChildProcess, spawn } from 'node:child_process'
import { pipeline, Readable, type Writable } from 'node:stream'
import { backoffMs, type Clock, pause } from '../base/clock.ts'
import { errorOf } from '../base/errors.ts'
import type { Log } from '../base/log.ts'
import { signalGroup } from '../base/process-group.ts'
import type { ApiFeed } from './feed.ts'
import { inChunks, stateLines } from './print.ts'
import type { ApiState } from './state.ts'

export interface ProgramOptions {
  readonly name: string
  /** A path, or a name that is searched in PATH. */
  readonly command: string
  readonly args: readonly string[]
  readonly feed: ApiFeed
  readonly clock: Clock
  readonly random: () => number
  readonly log: Log
  /** Limit of one run, milliseconds; 0 for none. */
  readonly timeoutMs: number
  /** Ends after the first run that is not interrupted. */
  readonly once?: boolean
}

const GRACE_MS = 2_000
const BACKOFF = { minMs: 1_000, maxMs: 60_000 } as const
/** Bytes of each of its two outputs for the log; the rest is read and dropped. */
const OUTPUT_BYTES_MAX = 2_048

/**
 * Starts a program for each state with the whole state on its standard input, one after the other: a state that comes
 * meanwhile waits, and gives way to one that is newer. A run that fails is repeated with the newest state, at growing
 * distances; one that is newer than what failed waits for the first of them only. Resolves when aborted, once the program
 * is gone, with whether its last run went well.
 */
export async function runProgram(options: ProgramOptions, signal: AbortSignal): Promise<boolean> {
  const { feed, once = false } = options
  let seen = 0
  let failures = 0
  // Without a run, success cannot be reported.
  let isFine = !once
  try {
    for (;;) {
      const state = await feed.newer(seen, signal)
      const run = await runOnce(options, state, signal)
      if (run.interrupted) return isFine
      report(options, state, run)
      isFine = run.trouble === undefined
      if (once) return isFine
      failures = isFine ? 0 : failures + 1
      // A failed program gets the newest state, even the same one.
      seen = isFine ? state.number : 0
      if (!isFine) await pauseAfter(options, { failures, tried: state }, signal)
    }
  } catch (error) {
    if (signal.aborted) return isFine
    throw error
  }
}

interface Run {
  readonly trouble: string | undefined
  /** Undefined when it was ended by a signal, or never began. */
  readonly code: number | undefined
  readonly durationMs: number
  readonly stdout: Head
  readonly stderr: Head
  /** It was ended because this process ends. */
  readonly interrupted: boolean
}

async function runOnce(options: ProgramOptions, state: ApiState, signal: AbortSignal): Promise<Run> {
  const { command, args, clock, timeoutMs } = options
  const beganMs = clock.nowMs()
  const [stdout, stderr] = [new Head(), new Head()]
  const child = startProgram(command, args)
  if (child instanceof Error) {
    const trouble = child.message
    return { trouble, code: undefined, durationMs: 0, stdout, stderr, interrupted: false }
  }
  child.stdout.on('data', (bytes: Buffer) => stdout.take(bytes))
  child.stderr.on('data', (bytes: Buffer) => stderr.take(bytes))
  feedInput(child.stdin, state)
  const ending = new Ending(child, clock)
  const cancel = timeoutMs === 0 ? undefined : clock.after(timeoutMs, () => ending.begin('late'))
  const aborted = () => ending.begin('aborted')
  signal.addEventListener('abort', aborted, { once: true })
  if (signal.aborted) aborted()
  const outcome = await outcomeOf(child, clock)
  cancel?.()
  signal.removeEventListener('abort', aborted)
  ending.finish()
  const isLate = ending.reason === 'late'
  return {
    ...(isLate ? { ...outcome, trouble: `killed after ${timeoutMs} ms (--exec-timeout)` } : outcome),
    durationMs: clock.nowMs() - beganMs,
    stdout,
    stderr,
    interrupted: ending.reason === 'aborted',
  }
}

/** An Error when there is no environment, memory or file descriptor for it; a program that does not exist is reported by an event. */
function startProgram(command: string, args: readonly string[]): Child | Error {
  try {
    // A group of its own: whatever it starts ends with it.
    const child: ChildProcess = spawn(command, args, { detached: true, stdio: 'pipe' })
    if (hasPipes(child)) return child
    child.once('error', () => undefined)
    return new Error(`cannot start ${command}: too many open files`)
  } catch (thrown) {
    return errorOf(thrown)
  }
}

/** Tests whether a child has pipes; spawn of node:child_process gives none at EMFILE and ENFILE. */
function hasPipes(child: ChildProcess): child is Child {
  return Boolean(child.stdin && child.stdout && child.stderr)
}

/** A program need not read its input: a broken pipe is no failure of its run. */
function feedInput(stdin: Writable, state: ApiState): void {
  pipeline(Readable.from(inChunks(stateLines(state))), stdin, () => undefined)
}

function outcomeOf(child: Child, clock: Clock): Promise<Pick<Run, 'trouble' | 'code'>> {
  return new Promise(resolve => {
    child.once('error', error => resolve({ trouble: error.message, code: undefined }))
    child.once('exit', (code, signal) => {
      // Limit for reading the output after the exit: background processes may hold the pipes for ever.
      const cancel = clock.after(200, () => {
        for (const pipe of [child.stdin, child.stdout, child.stderr]) pipe.destroy()
      })
      child.once('close', () => {
        cancel()
        resolve({ trouble: troubleOf(code, signal), code: code ?? undefined })
      })
    })
  })
}

function troubleOf(code: number | null, signal: string | null): string | undefined {
  if (code === 0) return undefined
  return code === null ? `ended by ${signal}` : `exit code ${code}`
}

/** The end of a process group: it is asked, and then made to. */
class Ending {
  readonly #child: Child
  readonly #clock: Clock
  #cancel: (() => void) | undefined
  reason: 'late' | 'aborted' | undefined

  constructor(child: Child, clock: Clock) {
    this.#child = child
    this.#clock = clock
  }

  begin(reason: 'late' | 'aborted'): void {
    if (this.reason !== undefined) return
    this.reason = reason
    this.#signal('SIGTERM')
    this.#cancel = this.#clock.after(GRACE_MS, () => this.#signal('SIGKILL'))
  }

  /** The program is gone; of a group that was asked to end, nothing stays. */
  finish(): void {
    this.#cancel?.()
    if (this.reason !== undefined) this.#signal('SIGKILL')
  }

  #signal(name: 'SIGTERM' | 'SIGKILL'): void {
    const { pid } = this.#child
    if (pid !== undefined) signalGroup(pid, name)
  }
}

class Head {
  #text = Buffer.alloc(0)
  #dropped = 0

  take(bytes: Buffer): void {
    const room = OUTPUT_BYTES_MAX - this.#text.length
    if (room > 0) this.#text = Buffer.concat([this.#text, bytes.subarray(0, room)])
    this.#dropped += Math.max(0, bytes.length - room)
  }

  toString(): string {
    const text = this.#text.toString('utf8').trimEnd()
    return this.#dropped === 0 ? text : `${text} … and ${this.#dropped} bytes more`
  }
}

function report({ name, log }: ProgramOptions, { number }: ApiState, run: Run): void {
  const output = { stdout: String(run.stdout), stderr: String(run.stderr) }
  const facts = {
    command: name,
    state: number,
    code: run.code,
    durationMs: Math.round(run.durationMs),
    ...Object.fromEntries(Object.entries(output).filter(([, text]) => text !== '')),
  }
  if (run.trouble === undefined) log.info(facts, 'program succeeded')
  else log.warn({ ...facts, trouble: run.trouble }, 'program failed; retrying')
}

interface Failure {
  readonly failures: number
  readonly tried: ApiState
}

/**
 * Waits after a failure. The next state may succeed where this one failed, so it does not wait for the whole delay. But
 * it waits for as long as after a first failure, so that a program that always fails does not run at every change of a
 * busy cluster.
 */
async function pauseAfter(
  { feed, clock, random }: ProgramOptions,
  { failures, tried }: Failure,
  signal: AbortSignal,
): Promise<void> {
  const delayMs = backoffMs(failures, { ...BACKOFF, random })
  const leastMs = Math.min(delayMs, BACKOFF.minMs)
  await pause(clock, leastMs, signal)
  const over = new AbortController()
  const cancel = clock.after(delayMs - leastMs, () => over.abort())
  try {
    signal.throwIfAborted()
    await feed.newer(tried.number, AbortSignal.any([signal, over.signal]))
  } catch (error) {
    if (signal.aborted || !over.signal.aborted) throw error
  } finally {
    cancel()
  }
}
