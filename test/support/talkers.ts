import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { inNamespace } from './lab/topology.ts'
import { eventually } from './patience.ts'

const PORT = 7_000
const WORD_S = 0.2
/** A word is still awaited this long after the last one was said. */
const LAST_WORD_MS = 20_000

/** A server in a namespace that says what it hears, at every address there is. */
export class Echo {
  static readonly port = PORT
  readonly #child: ChildProcess

  constructor(pid: number, addresses: readonly string[]) {
    for (const address of addresses)
      inNamespace(pid, ['ip', 'route', 'replace', 'local', address, 'dev', 'lo'])
    const server = ['busybox', 'nc', '-ll', '-p', String(PORT), '-e', 'cat']
    this.#child = spawn('nsenter', ['-t', String(pid), '-n', ...server], { stdio: 'ignore', detached: true })
  }

  close(): Promise<void> {
    return end(this.#child)
  }
}

/** One connection that says a word five times a second for as long as it is wanted. */
export class Talker {
  readonly #child: ChildProcess
  #said = 0
  #heard = 0
  #ended = false
  #timer: NodeJS.Timeout

  /** `pid` is of the namespace; undefined for this one. */
  constructor(pid: number | undefined, address: string, port: number) {
    const client = ['busybox', 'nc', address, String(port)]
    const [file = '', ...args] = pid === undefined ? client : ['nsenter', '-t', String(pid), '-n', ...client]
    this.#child = spawn(file, args, { stdio: ['pipe', 'pipe', 'ignore'], detached: true })
    this.#child.stdin?.on('error', () => undefined)
    this.#child.stdout?.on('data', chunk => {
      this.#heard += String(chunk).split('\n').length - 1
    })
    this.#child.on('close', () => {
      this.#ended = true
    })
    this.#timer = setInterval(() => this.#say(), WORD_S * 1_000)
  }

  /** Words that came back. */
  get heard(): number {
    return this.#heard
  }

  /** Rejects when the connection is lost, or does not answer. */
  async answers(more: number): Promise<void> {
    const wanted = this.#heard + more
    const words = () => `${this.#heard} words of ${this.#said}`
    const isAnswered = () => {
      if (this.#heard < wanted && this.#ended) throw new Error(`the connection ended after ${words()}`)
      return this.#heard >= wanted
    }
    const describe = () => `no answer after ${words()}`
    await eventually(isAnswered, { limitMs: LAST_WORD_MS, stepMs: 50, progress: () => this.#heard, describe })
  }

  /** Ends the connection in peace. */
  async close(): Promise<void> {
    clearInterval(this.#timer)
    await end(this.#child)
  }

  #say(): void {
    this.#said++
    this.#child.stdin?.write(`${this.#said}\n`)
  }
}

async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null || child.pid === undefined) return
  const closed = once(child, 'close')
  process.kill(-child.pid, 'SIGTERM')
  await closed
}
