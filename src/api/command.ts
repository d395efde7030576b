import { access, constants, stat } from 'node:fs/promises'
import { systemClock } from '../base/clock.ts'
import { errorOf } from '../base/errors.ts'
import type { Log } from '../base/log.ts'
import { aborted, EXIT_FAILED, EXIT_FINE, type Io } from '../cli/io.ts'
import { behindDashes, flaggedCommand } from '../cli/request.ts'
import { openServingLog, serveMetrics } from '../cli/serving.ts'
import type { ApiTlsConfig, BindAddress, Config } from '../config/config.ts'
import { type FlagReader, parseBool, quote } from '../config/flag.ts'
import { API_COMMAND_FLAGS, API_FLAGS, WITHOUT_EFFECT } from '../config/flags.ts'
import { defaultApiAddress, readApiAddress, readApiTls } from '../config/own-flags.ts'
import { openClient } from '../daemon/open.ts'
import { apiDescriptors, processRoom } from '../daemon/process-room.ts'
import { logCrowd } from '../daemon/servers.ts'
import type { HttpServer } from '../http/server.ts'
import { ApiNode } from './api-service.ts'
import { runProgram } from './exec.ts'
import { type ApiServer, startApiServer } from './grpc/server.ts'
import { createApiMetrics } from './metrics.ts'
import { printFeed } from './print.ts'

export const command = behindDashes(args =>
  flaggedCommand({
    name: 'api',
    usage: '[flags] [-- ARGUMENTS OF PROGRAMS]',
    description:
      'Publishes the Services of this node and changes nothing itself: over gRPC as KPNG did (localv1.Sets), as JSON lines\n' +
      'on standard output (--print), or on the standard input of programs that it starts for each state (--exec). Without\n' +
      '--print and --exec it serves gRPC. Needs no privileges.',
    details: [WITHOUT_EFFECT],
    listed: API_COMMAND_FLAGS,
    flags: API_FLAGS,
    modeless: true,
    read: (reader, config: ApiArguments['config'] = withoutConfig(reader)) =>
      readApiWanted(reader, { config, args, path: process.env.PATH }),
    async run(wanted, { config }, io) {
      const log = openServingLog('api', config, io)
      return await new Session(config, wanted, { io, log }).run()
    },
  }),
)

/** Gives the values that the checks of `kprobe api` need when other flags are invalid. */
function withoutConfig(reader: FlagReader): ApiArguments['config'] {
  const once = reader.given('once') && parseBool(reader.text('once') ?? '') !== false
  return { once, serviceProxyName: undefined, metricsBindAddress: { ip: '', port: 0 } }
}

class Session {
  readonly #config: Config
  readonly #wanted: ApiWanted
  readonly #io: Io
  readonly #log: Log
  readonly #node: ApiNode
  readonly #stop = new AbortController()
  readonly #descriptors = apiDescriptors(processRoom())
  /** The reason why there is no state to publish. */
  #blind: string | undefined

  constructor(config: Config, wanted: ApiWanted, { io, log }: { readonly io: Io; readonly log: Log }) {
    this.#config = config
    this.#wanted = wanted
    this.#io = io
    this.#log = log
    const warn = (text: string) => log.warn(text)
    this.#node = new ApiNode({
      config,
      clock: systemClock,
      random: Math.random,
      log,
      openClient: its => openClient(its, { clock: systemClock, env: process.env, warn, parts: io.parts }),
      ...(this.#endsByItself ? { blind: problem => this.#fail(problem) } : {}),
    })
  }

  #fail(problem: string): void {
    this.#blind ??= problem
    this.#stop.abort()
  }

  async run(): Promise<number> {
    const stop = this.#stop
    const end = () => stop.abort()
    for (const signal of [this.#io.signal, this.#io.outLost]) {
      if (signal === this.#io.outLost && this.#wanted.print === undefined) continue
      signal.addEventListener('abort', end, { once: true })
      if (signal.aborted) end()
    }
    const server = await this.#serve()
    const metrics = this.#serveMetrics(server)
    try {
      await this.#node.start()
      const code = await this.#work(stop)
      if (this.#blind === undefined) return code
      throw new Error(this.#blind)
    } finally {
      stop.abort()
      void metrics?.close()
      await server?.close()
      await this.#node.stop()
    }
  }

  /** A command that prints one state, or runs each program once, ends by itself. */
  get #endsByItself(): boolean {
    const { print, programs, listen, once } = this.#wanted
    return listen === undefined && (programs.length === 0 ? print === 'state' : once)
  }

  /** Resolves when all tasks that end by themselves have ended, or when the process is to end. */
  async #work(stop: AbortController): Promise<number> {
    const { print, programs, listen } = this.#wanted
    const { signal } = stop
    const printing = print === undefined ? [] : [this.#print(print, signal)]
    const running = programs.map(program => this.#runProgram(program, signal))
    const serving = listen === undefined ? [] : [aborted(signal).then(() => true)]
    const tasks = [...printing, ...running, ...serving]
    // A failed task stops the others. The command waits for these, so that no program outlives this process.
    for (const task of tasks) task.catch(() => stop.abort())
    const ended = await Promise.allSettled(tasks)
    for (const task of ended) if (task.status === 'rejected') throw task.reason
    return ended.every(task => task.status === 'fulfilled' && task.value) ? EXIT_FINE : EXIT_FAILED
  }

  async #print(what: 'state' | 'states' | 'differences', signal: AbortSignal): Promise<boolean> {
    const { out, outBacklogBytes } = this.#io
    const { feed } = this.#node
    await printFeed({ feed, clock: systemClock, write: out, backlogBytes: outBacklogBytes, what }, signal)
    // A requested state that was not printed is a failure.
    return what !== 'state' || feed.current !== undefined
  }

  async #runProgram(program: ApiProgram, signal: AbortSignal): Promise<boolean> {
    const { timeoutMs, once } = this.#wanted
    const options = { ...program, timeoutMs, once, clock: systemClock, random: Math.random }
    const isFine = await runProgram({ ...options, feed: this.#node.feed, log: this.#log }, signal)
    return isFine || !once
  }

  async #serve(): Promise<ApiServer | undefined> {
    const { listen, tls } = this.#wanted
    if (listen === undefined) return undefined
    const server = await startApiServer({
      feed: this.#node.feed,
      address: listen,
      tls,
      nodeName: this.#config.nodeName,
      clock: systemClock,
      connectionsMax: this.#descriptors.api,
      failed: err => this.#log.warn({ err }, 'API server error'),
      crowded: crowd => logCrowd(this.#log, 'api', crowd),
    }).catch(thrown => {
      const { message } = errorOf(thrown)
      // The message on an invalid TLS file starts with the flag of that file.
      throw new Error(message.startsWith('--') ? message : `--listen: ${message}`)
    })
    this.#log.info({ address: server.address }, 'back-end API listening')
    return server
  }

  #serveMetrics(server: ApiServer | undefined): HttpServer | undefined {
    const { metrics: at } = this.#wanted
    if (at === undefined) return undefined
    return serveMetrics('api', {
      at,
      log: this.#log,
      overShare: () => server?.overShare,
      create: overShare =>
        createApiMetrics(() => ({
          ...this.#node.feed.status(),
          ...server?.counts(),
          overShare: overShare(),
        })),
    })
  }
}

export interface ApiWanted {
  readonly print: 'state' | 'states' | 'differences' | undefined
  readonly programs: readonly ApiProgram[]
  /** Each program ends after one run. */
  readonly once: boolean
  readonly timeoutMs: number
  readonly listen: string | undefined
  readonly tls: ApiTlsConfig | undefined
  /** The address of the metrics server. The default is none, because `kprobe run` uses the default port. */
  readonly metrics: BindAddress | undefined
}

interface ApiArguments {
  readonly config: Pick<Config, 'once' | 'serviceProxyName' | 'metricsBindAddress'>
  readonly args: readonly string[]
  /** PATH; undefined when there is none. */
  readonly path: string | undefined
}

/** Reads the flags of `kprobe api`; errors go to the reader. */
export async function readApiWanted(
  reader: FlagReader,
  { config, args, path }: ApiArguments,
): Promise<ApiWanted> {
  const fail = (message: string) => reader.fail('--exec', message)
  const programs = await Promise.all(
    reader.all('exec').map(given => readApiProgram(given, { args, path }, fail)),
  )
  const prints = reader.bool('print')
  const serves = reader.given('listen') || (!prints && programs.length === 0)
  refuseWithoutPrint(reader, prints)
  refuseWithoutProgram(reader, programs, args)
  refuseEnds(reader, config)
  const tls = readApiTls(reader)
  if (tls !== undefined && !serves) reader.fail('--api-tls-cert', 'is for a server')
  if (reader.given('api') && serves && !reader.given('listen'))
    reader.fail('--api', 'is for `kprobe run`; `kprobe api` listens at --listen')
  return {
    print: prints ? printed(reader) : undefined,
    programs,
    once: config.once,
    timeoutMs: reader.durationMs('exec-timeout', { fallbackMs: 60_000 }),
    listen: serves
      ? (readApiAddress(reader, 'listen') ?? defaultApiAddress(config.serviceProxyName))
      : undefined,
    tls,
    metrics: reader.given('metrics-bind-address') ? config.metricsBindAddress : undefined,
  }
}

function printed(reader: FlagReader): ApiWanted['print'] {
  if (reader.bool('diff')) return 'differences'
  return reader.bool('watch') ? 'states' : 'state'
}

function refuseWithoutPrint(reader: FlagReader, prints: boolean): void {
  for (const name of ['diff', 'watch'])
    if (reader.given(name) && !prints) reader.fail(`--${name}`, 'is for --print')
  if (reader.bool('diff') && reader.bool('watch'))
    reader.fail('--diff', 'cannot be combined with --watch: choose changes or whole states')
}

function refuseWithoutProgram(
  reader: FlagReader,
  programs: readonly ApiProgram[],
  args: readonly string[],
): void {
  if (args.some(arg => arg.includes('\0'))) reader.fail('--', 'an argument has a zero byte in it')
  if (programs.length === 0) {
    if (args.length > 0) reader.fail('--', 'arguments are for the programs of --exec')
    if (reader.given('exec-timeout')) reader.fail('--exec-timeout', 'is for --exec')
  } else if (args.length > 0 && programs.every(isLine))
    reader.fail('--', 'arguments are for programs; a line that the shell runs contains its own')
}

/** Refuses --once where the command would end anyway, or could not end. */
function refuseEnds(reader: FlagReader, { once }: ApiArguments['config']): void {
  if (!once) return
  if (!reader.given('exec')) reader.fail('--once', 'is for --exec; --print alone exits without it')
  for (const name of ['listen', 'watch', 'diff'])
    if (name === 'listen' ? reader.given(name) : reader.bool(name))
      reader.fail('--once', `cannot be combined with --${name}, which does not exit`)
}

export interface ApiProgram {
  readonly name: string
  /** A path, or a name that is searched in PATH. */
  readonly command: string
  readonly args: readonly string[]
}

const SHELL = '/bin/sh'

/**
 * Reads one --exec. Its value is a program, which gets the arguments after `--`. A value with spaces that names no
 * program is a line for the shell, with its own arguments. `fail` gets the reason why the program cannot be used.
 */
export async function readApiProgram(
  given: string,
  { args, path }: Pick<ApiArguments, 'args' | 'path'>,
  fail: (message: string) => void,
): Promise<ApiProgram> {
  const program = { name: given, command: given, args }
  if (given.trim() === '' || given.includes('\0')) {
    fail(`${quote(given)} names no program`)
    return program
  }
  const whyNot = await whyNotProgram(given, path)
  if (whyNot !== ABSENT || !/\s/.test(given)) {
    if (whyNot !== undefined) fail(`${quote(given)}: ${whyNot}`)
    return program
  }
  const problem = await whyNotLine(given, path)
  if (problem !== undefined) fail(`${quote(given)}: ${problem}`)
  return { name: given, command: SHELL, args: ['-c', `${PIPEFAIL}; ${given}`] }
}

/**
 * Makes a pipe fail with any of its commands, if the shell can. The test runs in a subshell, because a shell without
 * the option (dash 0.5.12) would exit.
 */
const PIPEFAIL = '(set -o pipefail) 2>/dev/null && set -o pipefail'

export function isLine({ name, command }: ApiProgram): boolean {
  return name !== command
}

/** Only a path that does not exist is known to fail beforehand. The shell reports other errors with its exit code. */
async function whyNotLine(line: string, path: string | undefined): Promise<string | undefined> {
  if ((await whyNotProgram(SHELL, path)) !== undefined)
    return `no program has this name, and there is no ${SHELL} to run it as a line; put arguments of a program after --`
  const [, first] = /^\s*([\w./+-]*\/[\w./+-]*)(?:\s|$)/.exec(line) ?? []
  const whyNot = first === undefined ? undefined : await whyNotProgram(first, path)
  return whyNot === undefined ? undefined : `${first}: ${whyNot}`
}

const ABSENT = 'no such program'
/** The search path that execvp(3) uses without PATH. */
const DEFAULT_PATH = '/bin:/usr/bin'

async function whyNotProgram(command: string, path = DEFAULT_PATH): Promise<string | undefined> {
  if (command.includes('/')) return await whyNotFile(command)
  const found = await Promise.all(path.split(':').map(folder => whyNotFile(`${folder || '.'}/${command}`)))
  if (found.includes(undefined)) return undefined
  return found.find(whyNot => whyNot !== ABSENT) ?? ABSENT
}

async function whyNotFile(file: string): Promise<string | undefined> {
  try {
    if (!(await stat(file)).isFile()) return 'is not a file'
    await access(file, constants.X_OK)
    return undefined
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? error.code : undefined
    // A line may exceed the maximum length of a name.
    if (code === 'ENOENT' || code === 'ENOTDIR' || code === 'ENAMETOOLONG') return ABSENT
    return code === 'EACCES' ? 'is not executable' : String(error)
  }
}
