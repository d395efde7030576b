import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface, type Interface } from 'node:readline'
import { text } from 'node:stream/consumers'

export interface LastingOptions {
  /** A process whose network namespace it starts from; this process's own when absent. */
  readonly pid?: number
  /** A server that greets with a line and then echoes: see test/support/lab/traffic.c. */
  readonly host: string
  readonly port: number
}

export interface LastingReport {
  /** Bytes that were sent, and those of them that came back. */
  readonly sent: number
  readonly echoed: number
  /** What ended the connection before it was told to; empty when nothing did. */
  readonly broken: string
}

/** So many bytes a connection has to carry until it says something. */
export const LEAST_SENT = 21
/** Every 20 ms: the last byte comes back within 20 s, or was lost. */
const ECHO_LOOKS = 1_000

const SCRIPT = `
const [host, port] = process.argv.slice(1)
const socket = require('node:net').connect({ host, port: Number(port) })
let sent = 0, echoed = -1, broken = ''
socket.on('data', data => {
  if (echoed >= 0) echoed += data.length
  else {
    echoed = data.length - data.indexOf('\\n') - 1
    console.log('connected')
  }
})
socket.on('error', error => { broken = error.code })
socket.on('close', () => { broken ||= 'closed' })
const timer = setInterval(() => {
  if (echoed < 0) return
  socket.write('x')
  if (++sent === ${LEAST_SENT}) console.log('at work')
}, 20)
process.stdin.resume().on('end', () => {
  clearInterval(timer)
  let looks = 0
  const end = setInterval(() => {
    if (echoed < sent && broken === '' && ++looks < ${ECHO_LOOKS}) return
    clearInterval(end)
    console.log(JSON.stringify({ sent, echoed, broken }))
    process.exit()
  }, 20)
})
`

/** One TCP connection that sends a byte every 20 ms and counts what comes back, in a process of its own. */
export class LastingConnection {
  readonly #child: ChildProcess
  readonly #said: Promise<string>
  /** Resolves when the server has greeted; or when the process ended, which the report tells then. */
  readonly connected: Promise<unknown>
  /** Resolves when it has sent LEAST_SENT bytes; or when the process ended. */
  readonly atWork: Promise<unknown>

  constructor({ pid, host, port }: LastingOptions) {
    const node = [process.execPath, '-e', SCRIPT, host, String(port)]
    const command = pid === undefined ? node : ['nsenter', '-t', String(pid), '-n', ...node]
    const [file = '', ...args] = command
    const child = spawn(file, args, { stdio: ['pipe', 'pipe', 'inherit'] })
    this.#child = child
    this.#said = text(child.stdout)
    const lines = createInterface({ input: child.stdout })
    this.connected = Promise.race([once(lines, 'line'), once(child, 'exit')])
    this.atWork = Promise.race([lineOf(lines, 'at work'), once(child, 'exit')])
  }

  /** Ends it and tells how it went. */
  async stop(): Promise<LastingReport> {
    const ended = once(this.#child, 'exit')
    this.#child.stdin?.end()
    await ended
    const report: LastingReport = JSON.parse((await this.#said).trim().split('\n').at(-1) ?? '')
    return report
  }
}

function lineOf(lines: Interface, wanted: string): Promise<void> {
  return new Promise(resolve => lines.on('line', line => line === wanted && resolve()))
}
