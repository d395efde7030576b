import { StringDecoder } from 'node:string_decoder'

/** See guest/run-tests.ts. */
const PROGRESS = '\x1e'

/** Between a test and the place that it was called from is always the same. */
const RUNNER_FRAME = /^ +at .*node_modules\/@vitest\//

/**
 * What comes from the guest, line by line to standard output; on a terminal a last line says how far it is, and
 * elsewhere a line for each test. */
export function createOutput(transform) {
  const decoder = new StringDecoder('utf8')
  const began = Date.now()
  let rest = ''
  const print = raw => {
    const line = transform(raw)
    if (RUNNER_FRAME.test(line)) return
    if (!line.startsWith(PROGRESS)) process.stdout.write(`${clear()}${line}\n`)
    else if (process.stdout.isTTY) process.stdout.write(clear() + status(line.slice(1), Date.now() - began))
    else if (line.length > 1) process.stdout.write(`   ${line.slice(1)}\n`)
  }
  return {
    write(chunk) {
      const lines = (rest + decoder.write(chunk)).split('\n')
      rest = lines.pop() ?? ''
      for (const line of lines) print(line.replace(/\r$/, ''))
    },
    end() {
      if (rest !== '') print(rest)
      process.stdout.write(clear())
    },
  }
}

function clear() {
  return process.stdout.isTTY ? '\r\x1b[K' : ''
}

function status(text, ms) {
  return text === '' ? '' : `${Math.round(ms / 1000)} s  ${text}`.slice(0, process.stdout.columns - 1)
}
