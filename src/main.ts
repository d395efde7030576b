import { close as closeInspector, url as inspectorUrl } from 'node:inspector'
import { hostname } from 'node:os'
import { systemClock } from './base/clock.ts'
import { EXIT_FAILED, type Io, Outlet } from './cli/io.ts'
import { runCommand } from './commands.ts'
import { OPTIONAL_PARTS } from './optional-parts.ts'

/** The process exits at once on a second signal, or this long after the first. */
const PATIENCE_MS = 4_500

/**
 * Signals this close together count as one: npm forwards the Ctrl-C that the terminal has already sent to this process.
 */
const SAME_REQUEST_MS = 500

function stopOnSignals(): AbortSignal {
  const stop = new AbortController()
  let askedAtMs: number | undefined
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGQUIT'] as const) {
    process.on(signal, () => {
      const nowMs = performance.now()
      if (askedAtMs !== undefined && nowMs - askedAtMs > SAME_REQUEST_MS) process.exit(1)
      if (askedAtMs !== undefined) return
      askedAtMs = nowMs
      stop.abort(signal)
      setTimeout(() => process.exit(1), PATIENCE_MS).unref()
    })
  }
  return stop.signal
}

const stop = stopOnSignals()

const out = new Outlet(process.stdout)
const err = new Outlet(process.stderr)

// NODE_OPTIONS may have opened a debugger: its clients have all rights of this process.
if (inspectorUrl() !== undefined) {
  closeInspector()
  err.write('kprobe: closed the debugger that --inspect opened\n')
}

// By default, Node opens a debugger port on SIGUSR1: this process opens only configured ports.
process.on('SIGUSR1', () => undefined)

const io: Io = {
  out: text => out.write(text),
  outBytes: bytes => out.write(bytes),
  err: text => err.write(text),
  outLost: out.lost,
  outWritten: () => out.written(stop),
  outBacklogBytes: () => out.backlogBytes,
  color: process.stdout.isTTY === true && (process.env.NO_COLOR ?? '') === '' && process.env.TERM !== 'dumb',
  columns: Number(process.env.COLUMNS) || process.stdout.columns || undefined,
  terminal: process.stdout.isTTY === true,
  signal: stop,
  on(signal, run) {
    process.on(signal, run)
    return () => process.off(signal, run)
  },
  suspend:
    process.stdin.isTTY === true && process.stdout.isTTY === true && process.env.TERM !== 'dumb'
      ? () => process.kill(process.pid, 'SIGSTOP')
      : undefined,
  hostName: hostname(),
  processId: process.pid,
  parts: OPTIONAL_PARTS,
}

// No await out here: deploy/build.mjs makes a script of this, which V8 can keep compiled, and not a module.
void main()
// For a command that waits for something that no longer comes: the process ends by itself then.
process.exitCode = EXIT_FAILED

async function main(): Promise<never> {
  const code = await runCommand(process.argv.slice(2), io)
  await out.drained({ stop, clock: systemClock })
  if (out.failure !== undefined) err.write(`kprobe: standard output is incomplete: ${out.failure.message}\n`)
  await err.drained({ stop, clock: systemClock })
  return process.exit(out.failure === undefined ? code : EXIT_FAILED)
}
