import { type ChildProcess, spawn, spawnSync } from 'node:child_process'
import { closeSync, existsSync, mkdirSync, openSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { eventually } from '../support/patience.ts'

const START_MAX_MS = 30_000
const END_MAX_MS = 30_000
const OUTPUT_MAX_BYTES = 64 << 20
/** PID 1 of a cluster: what is orphaned in there becomes its child, and is waited for. */
const INIT = 'mount -t tmpfs tmpfs /run; mkdir /run/netns; while :; do sleep 3600 & wait $!; done'

/** Whom a command is run by: a process whose namespaces it enters. */
export interface Place {
  readonly pid: number
  /** Options of nsenter. */
  readonly enter: readonly string[]
  readonly name: string
}

export interface Command {
  readonly file: string
  readonly args: readonly string[]
  readonly env?: Readonly<Record<string, string>>
}

/**
 * A private mount, network and PID namespace, in which everything of a cluster runs: the nodes' own namespaces are
 * below it. The kernel ends all of it with its first process.
 */
export class Namespaces {
  readonly #folder: string
  readonly #init: number

  private constructor(folder: string, init: number) {
    this.#folder = folder
    this.#init = init
  }

  /** With `isTied` they end with this process, however that ends. */
  static async create(folder: string, isTied: boolean): Promise<Namespaces> {
    mkdirSync(folder, { recursive: true })
    const args = [
      '--mount',
      '--net',
      '--pid',
      '--fork',
      '--kill-child',
      '--mount-proc',
      '--propagation',
      'private',
    ]
    const unshare = ['unshare', ...args, 'sh', '-c', INIT]
    const [file = '', ...rest] = isTied ? ['setpriv', '--pdeathsig', 'KILL', ...unshare] : unshare
    const child = detached({ file, args: rest }, join(folder, 'namespaces.log'))
    const outer = child.pid ?? -1
    writeFileSync(holderFile(folder), JSON.stringify({ pid: outer, started: startOf(outer) ?? '' }))
    await eventually(() => firstProcessOf(outer) !== undefined, {
      limitMs: START_MAX_MS,
      describe: () =>
        `the namespaces of the cluster: ${readFileSync(join(folder, 'namespaces.log'), 'utf8')}`,
    })
    const opened = Namespaces.open(folder)
    if (opened === undefined) throw new Error(`the namespaces of the cluster ended: ${folder}/namespaces.log`)
    await eventually(
      () => opened.run({ file: 'test', args: ['-d', '/run/netns'] }).status === 0,
      START_MAX_MS,
    )
    return opened
  }

  /** Those that `create` made for this folder; undefined when they have ended. */
  static open(folder: string): Namespaces | undefined {
    const pid = holderOf(folder)
    const init = pid === undefined ? undefined : firstProcessOf(pid)
    return init === undefined ? undefined : new Namespaces(folder, init)
  }

  /** Ends everything that runs in them, with this one signal that no process can refuse. */
  async end(): Promise<void> {
    const holder = holderOf(this.#folder)
    process.kill(this.#init, 'SIGKILL')
    await eventually(() => holder === undefined || holderOf(this.#folder) === undefined, {
      limitMs: END_MAX_MS,
      describe: () => `process ${this.#init} of the cluster does not end`,
    })
  }

  get controlPlane(): Place {
    return { pid: this.#init, enter: ['--mount', '--net', '--pid'], name: 'control plane' }
  }

  node(name: string): Place {
    const outer = Number(readFileSync(join(this.#folder, name, 'outer.pid'), 'utf8'))
    const pid = firstProcessOf(outer)
    if (pid === undefined) throw new Error(`node ${name} has ended: ${this.#folder}/${name}/init.log`)
    return { pid, enter: ['--mount', '--net', '--pid', '--uts', '--ipc'], name: `node ${name}` }
  }

  run(command: Command, { place = this.controlPlane, input = '' }: { place?: Place; input?: string } = {}) {
    const { file, args, env } = inside(place, command)
    return spawnSync(file, args, {
      input,
      encoding: 'utf8',
      maxBuffer: OUTPUT_MAX_BYTES,
      env: { ...process.env, ...env },
    })
  }

  /** As `run`; gives the output, and throws with the words of a command that fails. */
  must(command: Command, options: { place?: Place; input?: string } = {}): string {
    const { status, stdout, stderr, error } = this.run(command, options)
    if (status === 0) return stdout
    const place = options.place ?? this.controlPlane
    const words = `${error?.message ?? ''} ${stderr ?? ''}`.trim().slice(-2_000)
    throw new Error(
      `${place.name}: ${command.file} ${command.args.join(' ').slice(0, 300)}: ${words || `exit code ${status}`}`,
    )
  }

  /** Starts what goes on when this process ends; its output goes to `log`. */
  start(command: Command, log: string, place: Place = this.controlPlane): ChildProcess {
    return detached(inside(place, command), log)
  }

  /** A child of this process, with pipes. */
  attach(command: Command, log: string): ChildProcess {
    const output = openSync(log, 'a')
    const { file, args, env } = inside(this.controlPlane, command)
    const child = spawn(file, args, { stdio: ['ignore', 'pipe', output], env: { ...process.env, ...env } })
    closeSync(output)
    return child
  }
}

/** Interrupts what `attach` has started: nsenter itself only waits for it. */
export function interruptAttached(child: ChildProcess): void {
  for (const pid of childrenOf(child.pid ?? -1)) process.kill(pid, 'SIGINT')
}

function inside({ pid, enter }: Place, { file, args, env = {} }: Command) {
  return { file: 'nsenter', args: ['--target', String(pid), ...enter, '--', file, ...args], env }
}

function detached({ file, args, env }: Command, log: string): ChildProcess {
  const output = openSync(log, 'a')
  const child = spawn(file, args, {
    detached: true,
    stdio: ['ignore', output, output],
    env: { ...process.env, ...env },
  })
  closeSync(output)
  child.on('error', error => writeFileSync(log, `${file}: ${error.message}\n`, { flag: 'a' }))
  child.unref()
  return child
}

function holderFile(folder: string): string {
  return join(folder, 'holder.json')
}

/** The process that made the namespaces, if it is still the same one. */
function holderOf(folder: string): number | undefined {
  if (!existsSync(holderFile(folder))) return undefined
  const { pid, started }: { pid: number; started: string } = JSON.parse(
    readFileSync(holderFile(folder), 'utf8'),
  )
  return startOf(pid) === started ? pid : undefined
}

/** When a process began, in ticks since the boot: with its number, its identity. */
function startOf(pid: number): string | undefined {
  return statOf(pid)?.[19]
}

/** Fields of proc_pid_stat(5) from the third on; undefined for a process that is not there, or a zombie. */
function statOf(pid: number): readonly string[] | undefined {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8')
    const fields = text.slice(text.lastIndexOf(')') + 2).split(' ')
    return fields[0] === 'Z' ? undefined : fields
  } catch {
    return undefined
  }
}

/** The first process of the innermost PID namespace that `pid` has started; undefined when there is none. */
function firstProcessOf(pid: number): number | undefined {
  for (let [at] = childrenOf(pid); at !== undefined; [at] = childrenOf(at))
    if (namespacePids(at).at(-1) === '1') return at
  return undefined
}

function namespacePids(pid: number): readonly string[] {
  try {
    const [, pids = ''] = /^NSpid:\s*(.*)$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8')) ?? []
    return pids.split(/\s+/).filter(Boolean)
  } catch {
    return []
  }
}

function childrenOf(pid: number): readonly number[] {
  try {
    return readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').split(' ').filter(Boolean).map(Number)
  } catch {
    return []
  }
}
