import { type ChildProcess, spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { assert } from '../../src/base/assert.ts'
import { CLUSTER_CIDR, NODE_NAME } from './pipeline.ts'

export const COMMAND = fileURLToPath(new URL('../../dist/kprobe.mjs', import.meta.url))

/** One line of the log. */
export type LogRecord = Readonly<Record<string, unknown>> & { readonly level: string; readonly msg: string }

export interface Exit {
  readonly code: number | null
  readonly signal: NodeJS.Signals | null
}

export interface DaemonOptions {
  /** Folder or file of objects. */
  readonly source: string
  readonly args?: readonly string[]
  /** A command that runs the daemon, such as strace with its options. */
  readonly wrapper?: readonly string[]
}

/** `kprobe run` as a process of its own, from the bundle, with the configuration that test/support/pipeline.ts knows. */
export class Daemon {
  readonly records: LogRecord[] = []
  /** Lines that are no log records: nothing should write such. */
  readonly strayLines: string[] = []
  /** Standard output so far. */
  out = ''
  readonly exited: Promise<Exit>
  readonly #child: ChildProcess
  #rest = ''
  #exit: Exit | undefined

  constructor({ source, args = [], wrapper = [] }: DaemonOptions) {
    assert(existsSync(COMMAND), `${COMMAND} is missing: npm run build`)
    const run = [process.execPath, COMMAND, 'run', `--source=file:${source}`, ...FLAGS, ...args]
    const [file = '', ...rest] = [...wrapper, ...run]
    this.#child = spawn(file, rest, { stdio: ['ignore', 'pipe', 'pipe'] })
    this.#child.stdout?.on('data', chunk => {
      this.out += chunk
    })
    this.#child.stderr?.on('data', chunk => this.#read(String(chunk)))
    this.exited = new Promise((resolve, reject) => {
      this.#child.on('error', reject)
      this.#child.on('close', (code, signal) => {
        this.#exit = { code, signal }
        resolve(this.#exit)
      })
    })
  }

  /** Of the process that was started: the wrapper's, if there is one. */
  get pid(): number {
    assert(this.#child.pid !== undefined, 'the daemon did not start')
    return this.#child.pid
  }

  /** Of kprobe itself. */
  get daemonPid(): number {
    const children = readFileSync(`/proc/${this.pid}/task/${this.pid}/children`, 'utf8').trim()
    return children === '' ? this.pid : Number(children.split(' ')[0])
  }

  get hasExited(): boolean {
    return this.#exit !== undefined
  }

  /** Log records with this text in the message. */
  said(text: string): readonly LogRecord[] {
    return this.records.filter(({ msg }) => msg.includes(text))
  }

  /** Resolves with the milliseconds it took until the daemon has programmed everything once. */
  synced(timeoutMs = 20_000): Promise<number> {
    return this.until(() => /^programmed /m.test(this.out), timeoutMs)
  }

  async until(isSo: () => boolean, timeoutMs = 10_000): Promise<number> {
    const began = performance.now()
    while (!isSo()) {
      const tookMs = performance.now() - began
      if (tookMs > timeoutMs) throw new Error(`not within ${timeoutMs} ms; ${this.#lastWords()}`)
      if (this.#exit !== undefined) throw new Error(`ended with ${this.#exit.code}; ${this.#lastWords()}`)
      await new Promise(resolve => setTimeout(resolve, 5))
    }
    return performance.now() - began
  }

  kill(signal: NodeJS.Signals): void {
    if (this.#exit === undefined) process.kill(this.daemonPid, signal)
  }

  /** Ends it and gives how it ended, with the milliseconds that took. */
  async stop(signal: NodeJS.Signals = 'SIGTERM'): Promise<Exit & { readonly tookMs: number }> {
    const began = performance.now()
    this.kill(signal)
    const exit = await this.exited
    return { ...exit, tookMs: performance.now() - began }
  }

  #read(chunk: string): void {
    const lines = `${this.#rest}${chunk}`.split('\n')
    this.#rest = lines.pop() ?? ''
    for (const line of lines) {
      const record: unknown = line.startsWith('{') ? JSON.parse(line) : undefined
      if (isRecord(record)) this.records.push(record)
      else this.strayLines.push(line)
    }
  }

  #lastWords(): string {
    const log = this.records.slice(-5).map(record => JSON.stringify(record))
    return [this.out.slice(-300), ...log, ...this.strayLines.slice(-5)].join('\n')
  }
}

const FLAGS = [
  '--logging-format=json',
  '-v=2',
  `--hostname-override=${NODE_NAME}`,
  `--cluster-cidr=${CLUSTER_CIDR}`,
]

function isRecord(value: unknown): value is LogRecord {
  return typeof value === 'object' && value !== null && 'msg' in value && 'level' in value
}

/** Daemons and folders of one test, all of which end with it. */
export class Daemons {
  readonly #daemons: Daemon[] = []
  readonly #folders: string[] = []

  start(options: DaemonOptions): Daemon {
    const daemon = new Daemon(options)
    this.#daemons.push(daemon)
    return daemon
  }

  /** An empty folder. */
  folder(): string {
    const folder = mkdtempSync(join(tmpdir(), 'kprobe-test-'))
    this.#folders.push(folder)
    return folder
  }

  async end(): Promise<void> {
    await Promise.all(this.#daemons.splice(0).map(daemon => daemon.stop('SIGKILL')))
    for (const folder of this.#folders.splice(0)) rmSync(folder, { recursive: true, force: true })
  }
}
