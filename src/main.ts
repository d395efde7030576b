import { hostname } from 'node:os'
import { runCommand } from './cli/commands.ts'
import type { Io } from './cli/io.ts'

/** A second signal, or one that nobody answers within this time, ends the process at once. */
const PATIENCE_MS = 4_500

/** Signals this close together are one request: npm passes on the Ctrl-C that the terminal has sent us already. */
const SAME_REQUEST_MS = 500

function stopOnSignals(): AbortSignal {
  const stop = new AbortController()
  let askedAtMs: number | undefined
  for (const signal of ['SIGINT', 'SIGTERM'] as const) {
    process.on(signal, () => {
      const nowMs = performance.now()
      if (askedAtMs !== undefined && nowMs - askedAtMs > SAME_REQUEST_MS) process.exit(1)
      if (askedAtMs !== undefined) return
      askedAtMs = nowMs
      stop.abort()
      setTimeout(() => process.exit(1), PATIENCE_MS).unref()
    })
  }
  return stop.signal
}

const stop = stopOnSignals()

// A reader that has seen enough (`kprobe dump | head`) is no failure.
for (const stream of [process.stdout, process.stderr]) {
  stream.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code === 'EPIPE') process.exit(0)
    throw error
  })
}

// The same signal asks Node to open a debugger on a port: this process opens no port that nobody configured.
process.on('SIGUSR1', () => undefined)

const io: Io = {
  out: text => void process.stdout.write(text),
  err: text => void process.stderr.write(text),
  colour: process.stdout.isTTY === true && (process.env.NO_COLOR ?? '') === '' && process.env.TERM !== 'dumb',
  signal: stop,
  hostName: hostname(),
  processId: process.pid,
}

const code = await runCommand(process.argv.slice(2), io)
// Whatever is still on its way to a pipe goes out first: an empty write ends after those before it.
await Promise.all([process.stdout, process.stderr].map(stream => new Promise(done => stream.write('', done))))
process.exit(code)
