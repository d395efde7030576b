import { close as closeInspector, url as inspectorUrl } from 'node:inspector'
import { hostname } from 'node:os'
import { setFlagsFromString } from 'node:v8'
import { systemClock } from './base/clock.ts'
import { runCommand } from './cli/commands.ts'
import { EXIT_FAILED, type Io } from './cli/io.ts'
import { Outlet } from './cli/outlet.ts'

/** A second signal, or one that nobody answers within this time, ends the process at once. */
const PATIENCE_MS = 4_500

/** Signals this close together are one request: npm passes on the Ctrl-C that the terminal has sent us already. */
const SAME_REQUEST_MS = 500

// V8 lets the space for new objects grow to 48 MiB, which a load fills and nobody uses afterwards. Kept at its first size
// it costs no time, and a load of 30,000 Services 176 MiB instead of 203. --max-semi-space-size would be the name for it,
// but V8 reads that one only before it runs anything.
setFlagsFromString('--semi-space-growth-factor=1')

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

// NODE_OPTIONS may have asked for it: whoever connects to it has all that this process may do.
if (inspectorUrl() !== undefined) {
  closeInspector()
  err.write('kprobe: a debugger was asked for (--inspect), and is closed\n')
}

// The same signal asks Node to open a debugger on a port: this process opens no port that nobody configured.
process.on('SIGUSR1', () => undefined)

const io: Io = {
  out: text => out.write(text),
  err: text => err.write(text),
  outLost: out.lost,
  outBacklogBytes: () => out.backlogBytes,
  colour: process.stdout.isTTY === true && (process.env.NO_COLOR ?? '') === '' && process.env.TERM !== 'dumb',
  columns: Number(process.env.COLUMNS) || process.stdout.columns || undefined,
  terminal: process.stdout.isTTY === true,
  signal: stop,
  on(signal, run) {
    process.on(signal, run)
    return () => process.off(signal, run)
  },
  hostName: hostname(),
  processId: process.pid,
}

const code = await runCommand(process.argv.slice(2), io)
await out.drained({ stop, clock: systemClock })
if (out.failure !== undefined) err.write(`kprobe: standard output is incomplete: ${out.failure.message}\n`)
await err.drained({ stop, clock: systemClock })
process.exit(out.failure === undefined ? code : EXIT_FAILED)
