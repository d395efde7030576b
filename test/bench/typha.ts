import { type ChildProcessWithoutNullStreams, execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { requireBinaries } from '../support/reference/binaries.ts'
import type { ControlPlane } from '../support/reference/control-plane.ts'
import { Program } from '../support/reference/process.ts'

/** Nodes in another process. */
export interface Readers {
  /** Resolves once all have the whole state, with the bytes of all lists where they are counted. */
  open(): Promise<number>
  /** Resolves once all together have read so many changes, with the milliseconds of processor time for that. */
  changes(count: number): Promise<number>
  end(): Promise<void>
}

interface Paths {
  readonly 'calico-typha'?: string
  readonly 'typha-readers': string
  /** Folder of the definitions of Calico's resources. */
  readonly crds: string
}

const ADDRESS = { host: '127.0.0.1', port: '5473' } as const
const START_MS = 60_000
const TICK_MS = 10

/** Typha of Calico, fed by the API server, with clients of its own library. It serves all that Felix reads. */
export class Typha {
  readonly who = 'one Typha'
  readonly #program: Program
  readonly #readersFile: string

  private constructor(program: Program, readersFile: string) {
    this.#program = program
    this.#readersFile = readersFile
  }

  /** Undefined, and a line says so, where it was not built. */
  static async start(plane: ControlPlane): Promise<Typha | undefined> {
    const build = join(process.env.KPROBE_ROOT ?? '', 'test/bench/typha/build.mjs')
    const paths: Paths = JSON.parse(execFileSync(process.execPath, [build, '--where'], { encoding: 'utf8' }))
    const file = paths['calico-typha']
    if (file === undefined) {
      console.log('skipped: Typha, which node test/bench/typha/build.mjs builds')
      return undefined
    }
    const kubeconfig = plane.kubeconfig('admin')
    const kubectl = (...args: readonly string[]) =>
      execFileSync(requireBinaries().kubectl, [`--kubeconfig=${kubeconfig}`, ...args], { stdio: 'pipe' })
    kubectl('create', '-f', paths.crds)
    kubectl('wait', '--for=condition=established', '--timeout=60s', 'crd', '--all')
    const environment = {
      KUBECONFIG: kubeconfig,
      TYPHA_DATASTORETYPE: 'kubernetes',
      TYPHA_LOGFILEPATH: 'none',
      TYPHA_LOGSEVERITYSCREEN: 'warning',
      TYPHA_SERVERHOST: ADDRESS.host,
      TYPHA_SERVERPORT: ADDRESS.port,
    }
    const log = join(plane.folder, 'typha.log')
    const program = new Program({ name: 'Typha', file, args: [], environment, log })
    const isListening = () => /:1561 \S+ 0A /.test(readFileSync('/proc/net/tcp', 'utf8'))
    await program.until(isListening, START_MS)
    await sleep(3_000)
    return new Typha(program, paths['typha-readers'])
  }

  get pid(): number {
    return this.#program.pid
  }

  readonly readers = (count: number): Readers => new TyphaReaders(this.#readersFile, count)

  stop(): Promise<void> {
    return this.#program.stop('SIGKILL')
  }
}

class TyphaReaders implements Readers {
  readonly #child: ChildProcessWithoutNullStreams
  readonly #lines: AsyncIterator<string>

  constructor(file: string, count: number) {
    this.#child = spawn(file, [`${ADDRESS.host}:${ADDRESS.port}`, String(count)])
    this.#child.stderr.pipe(process.stderr)
    this.#lines = createInterface(this.#child.stdout)[Symbol.asyncIterator]()
  }

  async open(): Promise<number> {
    await this.#hears('synced')
    return Number.NaN
  }

  async changes(count: number): Promise<number> {
    const { pid = 0 } = this.#child
    const before = cpuMsOf(pid)
    this.#child.stdin.write(`${count}\n`)
    await this.#hears('done')
    return cpuMsOf(pid) - before
  }

  async end(): Promise<void> {
    this.#child.kill()
    await once(this.#child, 'exit')
  }

  async #hears(word: string): Promise<void> {
    const { value } = await this.#lines.next()
    if (value !== word) throw new Error(`clients of Typha: ${value ?? 'ended'} instead of ${word}`)
  }
}

/** User and system time of a process: proc(5). */
export function cpuMsOf(pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]?.split(' ') ?? []
  return (Number(fields[11]) + Number(fields[12])) * TICK_MS
}

/** What a process has written to sockets and files. */
export function writtenBytes(pid: number): number {
  return Number(/^wchar: (\d+)/m.exec(readFileSync(`/proc/${pid}/io`, 'utf8'))?.[1])
}
