import { type ChildProcess, spawn } from 'node:child_process'
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { assert } from '../../src/base/errors.ts'
import { eventually, LIMIT_MS, within } from './patience.ts'
import { CLUSTER_CIDR, NODE_NAME } from './pipeline.ts'

export const COMMAND = fileURLToPath(new URL('../../dist/kprobe.mjs', import.meta.url))
/** Objects of a cluster, for `--source`. */
export const EXAMPLES = fileURLToPath(new URL('../../deploy/examples', import.meta.url))
/** Flags with which a command reads them. */
export const EXAMPLE_FLAGS = [`--source=file:${EXAMPLES}`, '--hostname-override=example-node']

type LogRecord = Readonly<Record<string, unknown>> & { readonly level: string; readonly msg: string }

/** A daemon that starts with many objects may end only once it has read them. */
const ENDED_MS = 60_000

export interface Exit {
  readonly code: number | null
  readonly signal: NodeJS.Signals | null
}

/** Where the daemon reads its objects. */
type DaemonSource =
  /** Folder or file of objects. */
  | { readonly kind: 'file'; readonly path: string }
  /** An API server, by the path of a kubeconfig. */
  | { readonly kind: 'kube'; readonly kubeconfig: string }

export interface DaemonOptions {
  /** A text is the path of files. */
  readonly source: string | DaemonSource
  readonly args?: readonly string[]
  /** A command that runs the daemon, such as strace with its options. */
  readonly wrapper?: readonly string[]
  /** Arguments of Node itself. */
  readonly nodeArgs?: readonly string[]
  /** Besides those of the test. */
  readonly env?: Readonly<Record<string, string>>
  /** Another bundle than that of the build. */
  readonly command?: string
  /** Listens at the admin socket that is there without a flag, which all daemons of a file system share. */
  readonly atDefaultSocket?: boolean
  /** Descriptor that takes standard error instead of this process. */
  readonly errFd?: number
}

/** `kprobe run` as a process of its own, from the bundle, with the configuration that test/support/pipeline.ts knows. */
export class Daemon {
  readonly records: LogRecord[] = []
  /** Lines that are no log records: nothing should write such. */
  readonly strayLines: string[] = []
  /** Standard output so far. */
  out = ''
  readonly #exited: Promise<Exit>
  readonly #child: ChildProcess
  readonly #isWrapped: boolean
  #rest = ''
  #exit: Exit | undefined

  constructor(options: DaemonOptions) {
    const { source, args = [], wrapper = [], nodeArgs = [], command = COMMAND, errFd = 'pipe' } = options
    assert(existsSync(command), `${command} is missing: npm run build`)
    const flags = [...FLAGS, ...(options.atDefaultSocket === true ? [] : ['--admin-socket=']), ...args]
    const run = [process.execPath, ...nodeArgs, command, 'run', ...sourceFlags(source), ...flags]
    const [file = '', ...rest] = [...wrapper, ...run]
    const env = { ...process.env, ...options.env }
    this.#isWrapped = wrapper.length > 0
    this.#child = spawn(file, rest, { stdio: ['ignore', 'pipe', errFd], env })
    this.#child.stdout?.on('data', chunk =>
      late(() => {
        this.out += chunk
      }),
    )
    this.#child.stderr?.on('data', chunk => late(() => this.#read(String(chunk))))
    this.#exited = new Promise((resolve, reject) => {
      this.#child.on('error', reject)
      this.#child.on('close', (code, signal) =>
        late(() => {
          this.#exit = { code, signal }
          resolve(this.#exit)
        }),
      )
    })
  }

  /** Of the process that was started: the wrapper's, if there is one. */
  get pid(): number {
    assert(this.#child.pid !== undefined, 'the daemon did not start')
    return this.#child.pid
  }

  /** Of kprobe itself. */
  get daemonPid(): number {
    // Of its own it has children, too: a credential plugin.
    if (!this.#isWrapped) return this.pid
    const children = readFileSync(`/proc/${this.pid}/task/${this.pid}/children`, 'utf8').trim()
    return children === '' ? this.pid : Number(children.split(' ')[0])
  }

  get hasExited(): boolean {
    return this.#exit !== undefined
  }

  /**
   * Gives the log records with this text in the message that were read so far. The log takes a way of its own: a test
   * that has seen something elsewhere waits with `logged` for what the daemon says of it.
   */
  said(text: string): readonly LogRecord[] {
    // The proof's messages have that word as well.
    return this.records.filter(({ msg }) => (text === 'committed' ? msg === text : msg.includes(text)))
  }

  /** Waits until at least `count` log records have this text in the message; gives all that have it then. */
  async logged(text: string, count = 1, limitMs = LIMIT_MS): Promise<readonly LogRecord[]> {
    await this.until(() => this.said(text).length >= count, limitMs)
    return this.said(text)
  }

  /** Does `act`, and waits until the daemon has logged this text once more than before. */
  async loggedAfter(text: string, act: () => unknown, limitMs = LIMIT_MS): Promise<readonly LogRecord[]> {
    await this.caughtUp()
    const before = this.said(text).length
    await act()
    return await this.logged(text, before + 1, limitMs)
  }

  /** Waits until all is read that a daemon that runs has logged so far. What is missing then was not logged. */
  async caughtUp(): Promise<void> {
    const before = this.said(STATE).length
    this.kill('SIGUSR2')
    await this.until(() => this.said(STATE).length > before)
  }

  /** Resolves with the milliseconds it took until the daemon has programmed everything once. */
  synced(limitMs = 60_000): Promise<number> {
    return this.until(() => this.said('first sync complete').length > 0, limitMs)
  }

  /** Waits until it is so; fails when the daemon ends before, or says nothing new for so long. */
  until(isSo: () => boolean, limitMs = LIMIT_MS): Promise<number> {
    const holds = () => {
      const isNow = isSo()
      if (!isNow && this.#exit !== undefined)
        throw new Error(`ended with ${this.#exit.code}; ${this.#lastWords()}`)
      return isNow
    }
    const progress = () => this.out.length + this.records.length
    return eventually(holds, { limitMs, stepMs: 5, progress, describe: () => this.#lastWords() })
  }

  /** Nobody is at the other end of the daemon's pipes any more. */
  hangUp(): void {
    this.#child.stdout?.destroy()
    this.#child.stderr?.destroy()
  }

  kill(signal: NodeJS.Signals): void {
    if (this.#exit === undefined) process.kill(this.daemonPid, signal)
  }

  /** Waits until it ends; fails when it goes on for so long without a word. */
  ended(): Promise<Exit> {
    const progress = () => this.out.length + this.records.length
    const describe = () => `the daemon has not ended: ${this.#lastWords()}`
    return within(this.#exited, { limitMs: ENDED_MS, progress, describe })
  }

  /** Ends it and gives how it ended, with the milliseconds that took. */
  async stop(signal: NodeJS.Signals = 'SIGTERM'): Promise<Exit & { readonly tookMs: number }> {
    const began = performance.now()
    this.kill(signal)
    const exit = await this.ended()
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

/** Message of the answer to SIGUSR2. */
const STATE = 'state'

/** Delay of all that tests read of a daemon, to find those that expect it before it must be there. */
const LATE_MS = Number(process.env.KPROBE_LATE_MS ?? 0)

function late(read: () => void): void {
  if (LATE_MS > 0) setTimeout(read, LATE_MS)
  else read()
}

const FLAGS = [
  '--logging-format=json',
  '-v=2',
  `--hostname-override=${NODE_NAME}`,
  `--cluster-cidr=${CLUSTER_CIDR}`,
]

function sourceFlags(source: string | DaemonSource): readonly string[] {
  if (typeof source === 'string') return [`--source=file:${source}`]
  return source.kind === 'file' ? [`--source=file:${source.path}`] : [`--kubeconfig=${source.kubeconfig}`]
}

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

  /** A daemon that has programmed what its source has. */
  async running(options: DaemonOptions): Promise<Daemon> {
    const daemon = this.start(options)
    await daemon.synced()
    return daemon
  }

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
