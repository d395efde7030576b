#!/usr/bin/env node
import { runInGuest } from './machine.mjs'
// Runs tests, or any command, in a guest with a stock kernel of Debian's: see README.md beside this file.
//   node test/vm/run.mjs                  every test of this folder
//   node test/vm/run.mjs FILE...          these files
//   node test/vm/run.mjs -- COMMAND...    a command, in the top folder
import { prepare, Skipped } from './prepare.mjs'

const MAX_MS = Number(process.env.KPROBE_VM_SECONDS || 600) * 1000

try {
  process.exitCode = await main(process.argv.slice(2))
} catch (error) {
  if (!(error instanceof Skipped)) throw error
  console.log(`skipped: ${error.message}`)
}

async function main(args) {
  const kernel = prepare()
  const abort = new AbortController()
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.once(signal, () => abort.abort(signal))
  const began = Date.now()
  const { exitCode, console: log } = await runInGuest({
    kernel,
    command: args
      .slice(args.indexOf('--') + 1)
      .map(quoted)
      .join(' '),
    maxMs: MAX_MS,
    signal: abort.signal,
    write: chunk => process.stdout.write(chunk),
  })
  const seconds = Math.round((Date.now() - began) / 1000)
  if (exitCode === undefined) {
    const why = abort.signal.aborted ? abort.signal.reason : 'ended'
    console.error(`${log}\nthe guest gave no exit code (${why}) after ${seconds} s`)
    return 1
  }
  console.error(`${kernel.name} ${kernel.version}: ${seconds} s`)
  return exitCode
}

function quoted(word) {
  return `'${word.replaceAll("'", "'\\''")}'`
}
