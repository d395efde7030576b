import { runProgram } from '../api/exec.ts'
import { DEFAULT_API_ADDRESS } from '../api/grpc/address.ts'
import { type ApiServer, startApiServer } from '../api/grpc/server.ts'
import { printFeed } from '../api/print.ts'
import { systemClock } from '../base/clock.ts'
import { parseDurationMs, TIMER_MS_MAX } from '../base/duration.ts'
import { type Log, openLog } from '../base/log.ts'
import { API_BESIDE_FLAGS, API_FLAGS, API_TLS_FLAGS } from '../config/api-flags.ts'
import type { ApiTlsConfig, BindAddress, Config } from '../config/config.ts'
import { type FlagReader, quote } from '../config/flag-reader.ts'
import { HELP_FLAG, WITHOUT_EFFECT } from '../config/flags.ts'
import { helpText } from '../config/help.ts'
import { SOURCE_FLAGS } from '../config/model-flags.ts'
import { readApiAddress, readApiTls } from '../config/read-api.ts'
import { ApiNode } from '../daemon/api-node.ts'
import { openClient } from '../daemon/open.ts'
import { createApiMetrics } from '../telemetry/api-metrics.ts'
import type { HttpServer } from '../telemetry/http-server.ts'
import { openMetricsServer } from '../telemetry/metrics-server.ts'
import { createSliMetrics } from '../telemetry/sli-metrics.ts'
import { type Command, EXIT_FAILED, EXIT_FINE, type Io } from './io.ts'
import { readRequest } from './read-request.ts'
import { failureText, usageErrors } from './usage-errors.ts'

export const command: Command = {
  help: () =>
    helpText({
      usage: 'kprobe api [flags] [-- ARGUMENTS OF PROGRAMS]',
      description:
        'Tells other programs what Services mean on this node, and changes nothing itself: over gRPC as KPNG did\n' +
        '(localv1.Sets), as JSON lines on standard output (--print), or on the standard input of programs that are started\n' +
        'for each state (--exec). Without --print and --exec it is the server. Needs no privileges.',
      details: [WITHOUT_EFFECT],
      flags: [...API_FLAGS, ...API_TLS_FLAGS, ...API_BESIDE_FLAGS, ...SOURCE_FLAGS, HELP_FLAG],
    }),
  run,
}

async function run(argv: readonly string[], io: Io): Promise<number> {
  const end = argv.indexOf('--')
  const flags = end < 0 ? argv : argv.slice(0, end)
  const request = await readRequest(flags, io, { command: 'api', extra: API_FLAGS, modeless: true })
  if (typeof request === 'number') return request
  const { config, extra } = request
  const wanted = readWanted(extra, config, end < 0 ? [] : argv.slice(end + 1))
  if (extra.errors.length > 0) return usageErrors(io, 'api', extra.errors)
  const { log } = openLog({ format: config.logFormat, verbosity: config.verbosity })
  return await new Session(config, wanted, { io, log }).run()
}

interface Wanted {
  readonly print: 'state' | 'states' | 'differences' | undefined
  readonly programs: readonly string[]
  readonly args: readonly string[]
  readonly timeoutMs: number
  /** Undefined when nothing is served. */
  readonly listen: string | undefined
  readonly tls: ApiTlsConfig | undefined
  /** Where metrics are served; nowhere unless told, for `kprobe run` is at the usual place. */
  readonly metrics: BindAddress | undefined
}

const TIMEOUT_MS = 60_000

function readWanted(reader: FlagReader, config: Config, args: readonly string[]): Wanted {
  const [diff, watch] = [reader.bool('diff'), reader.bool('watch')]
  const prints = reader.bool('print')
  for (const name of ['diff', 'watch'])
    if (reader.given(name) && !prints) reader.fail(`--${name}`, 'is for --print')
  const programs = reader.all('exec')
  for (const program of programs)
    if (program === '' || program.includes('\0')) reader.fail('--exec', `${quote(program)} names no program`)
  if (args.length > 0 && programs.length === 0) reader.fail('--', 'arguments are for the programs of --exec')
  if (args.some(arg => arg.includes('\0'))) reader.fail('--', 'an argument has a zero byte in it')
  if (reader.given('exec-timeout') && programs.length === 0) reader.fail('--exec-timeout', 'is for --exec')
  const serves = reader.given('listen') || (!prints && programs.length === 0)
  const tls = readApiTls(reader)
  if (tls !== undefined && !serves) reader.fail('--api-tls-cert', 'is for a server')
  return {
    print: prints ? (diff ? 'differences' : watch ? 'states' : 'state') : undefined,
    programs,
    args,
    timeoutMs: readTimeout(reader),
    listen: serves ? (readApiAddress(reader, 'listen') ?? DEFAULT_API_ADDRESS) : undefined,
    tls,
    metrics: reader.given('metrics-bind-address') ? config.metricsBindAddress : undefined,
  }
}

function readTimeout(reader: FlagReader): number {
  const text = reader.text('exec-timeout')
  if (text === undefined) return TIMEOUT_MS
  const ms = parseDurationMs(text)
  if (ms !== undefined && ms >= 0 && ms <= TIMER_MS_MAX) return ms
  reader.fail('--exec-timeout', `${quote(text)} is not a duration (10s, 2m) from 0 to 596h`)
  return TIMEOUT_MS
}

class Session {
  readonly #config: Config
  readonly #wanted: Wanted
  readonly #io: Io
  readonly #log: Log
  readonly #node: ApiNode
  readonly #stop = new AbortController()
  /** Why there is nothing to tell. */
  #blind: string | undefined

  constructor(config: Config, wanted: Wanted, { io, log }: { readonly io: Io; readonly log: Log }) {
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
      openClient: its => openClient(its, { clock: systemClock, env: process.env, warn }),
      blind: problem => {
        if (!this.#endsByItself) return
        this.#blind ??= problem
        this.#stop.abort()
      },
    })
  }

  async run(): Promise<number> {
    const stop = this.#stop
    const aborted = () => stop.abort()
    for (const signal of [this.#io.signal, this.#io.outLost]) {
      if (signal === this.#io.outLost && this.#wanted.print === undefined) continue
      signal.addEventListener('abort', aborted, { once: true })
      if (signal.aborted) aborted()
    }
    try {
      const server = await this.#serve()
      const metrics = this.#serveMetrics(server)
      try {
        await this.#node.start()
        const code = await this.#work(stop)
        if (this.#blind === undefined) return code
        throw new Error(this.#blind)
      } finally {
        stop.abort()
        metrics?.close()
        await server?.close()
        await this.#node.stop()
      }
    } catch (error) {
      this.#io.err(`kprobe api: ${failureText(error)}\n`)
      return EXIT_FAILED
    }
  }

  /** A script waits for the one state that it has asked for. */
  get #endsByItself(): boolean {
    const { print, programs, listen } = this.#wanted
    const { once } = this.#config
    return listen === undefined && (programs.length === 0 ? print === 'state' : once)
  }

  /** Until everything that ends by itself has ended, or the process is to end. */
  async #work(stop: AbortController): Promise<number> {
    const { print, programs, listen } = this.#wanted
    const { signal } = stop
    const printing = print === undefined ? [] : [this.#print(print, signal)]
    const running = programs.map(command => this.#runProgram(command, signal))
    const serving = listen === undefined ? [] : [untilAborted(signal)]
    const tasks = [...printing, ...running, ...serving]
    // One that fails takes the others with it; those are waited for as well: no program outlives this process.
    for (const task of tasks) task.catch(() => stop.abort())
    const ended = await Promise.allSettled(tasks)
    for (const task of ended) if (task.status === 'rejected') throw task.reason
    return ended.every(task => task.status === 'fulfilled' && task.value) ? EXIT_FINE : EXIT_FAILED
  }

  async #print(what: 'state' | 'states' | 'differences', signal: AbortSignal): Promise<boolean> {
    const { out, outBacklogBytes } = this.#io
    const { feed } = this.#node
    await printFeed({ feed, clock: systemClock, write: out, backlogBytes: outBacklogBytes, what }, signal)
    // Somebody who asked for one state and got none is to know.
    return what !== 'state' || feed.current !== undefined
  }

  async #runProgram(command: string, signal: AbortSignal): Promise<boolean> {
    const { args, timeoutMs } = this.#wanted
    const { once } = this.#config
    const options = { command, args, timeoutMs, once, clock: systemClock, random: Math.random }
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
      failed: err => this.#log.warn({ err }, 'the API has trouble'),
    })
    this.#log.info({ address: server.address }, 'the API is served')
    return server
  }

  #serveMetrics(server: ApiServer | undefined): HttpServer | undefined {
    const { metrics } = this.#wanted
    if (metrics === undefined) return undefined
    const { feed } = this.#node
    return openMetricsServer({
      ...metrics,
      clock: systemClock,
      hardFail: false,
      proxyMode: () => 'api',
      metrics: createApiMetrics(() => ({ ...feed.status(), ...server?.counts() })),
      slis: createSliMetrics(),
      configz: () => ({}),
      report: news => {
        if (news.kind === 'failed') this.#log.warn({ err: news.error }, 'metrics cannot be served')
      },
    })
  }
}

function untilAborted(signal: AbortSignal): Promise<boolean> {
  return new Promise(resolve => {
    signal.addEventListener('abort', () => resolve(true), { once: true })
    if (signal.aborted) resolve(true)
  })
}
