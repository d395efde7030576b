#!/usr/bin/env node
// Runs tests, or any command, in a guest with a stock kernel of Debian's: see README.md beside this file.
//   node test/vm/run.mjs                          every test that is for a guest
//   node test/vm/run.mjs --core | --rest          those that a change breaks first, or the others
//   node test/vm/run.mjs [-t PATTERN] FILE...     these files, and of them tests with such a name
//   node test/vm/run.mjs -- COMMAND...            a command, in the top folder
import { existsSync } from 'node:fs'
import { parseArgs } from 'node:util'
import { requireBuild } from '../support/require-build.mjs'
import { bundleTests } from './bundle.mjs'
import { runInGuest } from './machine.mjs'
import { createOutput } from './output.mjs'
import { prepare, Skipped } from './prepare.mjs'
import { testsForGuest } from './tests.mjs'

/** A guest goes on for as long as tests begin and end: ten times what one takes on an idle machine. */
const SILENT_MS = Number(process.env.KPROBE_VM_SECONDS || 1_200) * 1000
/** Code that is made at run time has to be translated once more here: less of it takes a fifth less time. */
const NODE_OPTIONS = '--no-opt'
/** What takes a test seconds elsewhere takes it minutes here. One that hangs is named before the guest is ended. */
const TEST_OPTIONS = { timeoutMs: SILENT_MS * 0.9 }

try {
  process.exitCode = await main(process.argv.slice(2))
} catch (error) {
  if (!(error instanceof Skipped)) throw error
  console.log(`skipped: ${error.message}`)
}

async function main(args) {
  const kernel = prepare()
  const end = args.indexOf('--')
  if (end >= 0)
    return runCommand(
      kernel,
      args
        .slice(end + 1)
        .map(quoted)
        .join(' '),
      line => line,
    )
  const { values, positionals } = parseArgs({
    args,
    options: {
      t: { type: 'string', short: 't' },
      core: { type: 'boolean' },
      rest: { type: 'boolean' },
    },
    allowPositionals: true,
  })
  const absent = positionals.filter(path => !existsSync(path))
  if (absent.length > 0) {
    console.error(`no such test file: ${absent.join(', ')}; paths are relative to the top folder`)
    return 2
  }
  requireBuild()
  const files = positionals.length > 0 ? positionals : testsForGuest(values)
  const part = values.core === true ? 'core' : values.rest === true ? 'rest' : 'all'
  const { script, original, remove } = await bundleTests(files, { ...TEST_OPTIONS, pattern: values.t })
  try {
    return await runCommand(
      kernel,
      `KPROBE_LATE_MS=${Number(process.env.KPROBE_LATE_MS ?? 0)} KPROBE_VM_PART=${part} NO_COLOR=1 exec node ${NODE_OPTIONS} ${quoted(script)}`,
      original,
    )
  } finally {
    remove()
  }
}

async function runCommand(kernel, command, transform) {
  const abort = new AbortController()
  for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.once(signal, () => abort.abort(signal))
  const output = createOutput(transform)
  const began = Date.now()
  const {
    exitCode,
    isSilent,
    console: log,
  } = await runInGuest({
    kernel,
    command,
    silentMs: SILENT_MS,
    signal: abort.signal,
    write: chunk => output.write(chunk),
  })
  output.end()
  const seconds = Math.round((Date.now() - began) / 1000)
  console.log(`${kernel.name} ${kernel.version}, ${seconds} s`)
  if (exitCode !== undefined) return exitCode
  const why = abort.signal.aborted
    ? abort.signal.reason
    : isSilent
      ? `it was silent for ${SILENT_MS / 1000} s`
      : 'it ended'
  console.error(`FAIL  the guest gave no exit code: ${why}. The end of its kernel's log:\n${log}`)
  return 1
}

function quoted(word) {
  return `'${word.replaceAll("'", "'\\''")}'`
}
