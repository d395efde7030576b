import { runProgram } from '../api/exec.ts'
import { type ApiServer, startApiServer } from '../api/grpc/server.ts'
import { printFeed } from '../api/lines.ts'
import { systemClock } from '../base/clock.ts'
import { errorOf, failureText } from '../base/errors.ts'
import { type Log, openLog } from '../base/log.ts'
import { NONE_OVER_SHARE } from '../base/shares.ts'
import { oneLine } from '../base/text.ts'
import type { Config } from '../config/config.ts'
import { type FlagReader, parseBool } from '../config/flag.ts'
import { API_COMMAND_FLAGS, API_FLAGS, HELP_FLAG, WITHOUT_EFFECT } from '../config/flags.ts'
import { helpText } from '../config/help.ts'
import { ApiNode } from '../daemon/api-service.ts'
import { openClient } from '../daemon/open.ts'
import { apiDescriptors, processRoom } from '../daemon/process-room.ts'
import { logCrowd } from '../daemon/servers.ts'
import type { HttpServer } from '../http/server.ts'
import { createSliMetrics, openMetricsServer } from '../telemetry/metrics-server.ts'
import { createApiMetrics } from '../telemetry/server-metrics.ts'
import { type ApiArguments, type ApiProgram, type ApiWanted, readApiWanted } from './api-wanted.ts'
import { type Command, EXIT_FAILED, EXIT_FINE, type Io } from './io.ts'
import { aborted } from './output.ts'
import { readRequest, usageErrors } from './request.ts'

export const command: Command = {
  help: () =>
    helpText({
      usage: 'kprobe api [flags] [-- ARGUMENTS OF PROGRAMS]',
      description:
        'Publishes the Services of this node and changes nothing itself: over gRPC as KPNG did (localv1.Sets), as JSON lines\n' +
        'on standard output (--print), or on the standard input of programs that it starts for each state (--exec). Without\n' +
        '--print and --exec it serves gRPC. Needs no privileges.',
      details: [WITHOUT_EFFECT],
      flags: [...API_COMMAND_FLAGS, HELP_FLAG],
    }),
  run,
}

async function run(argv: readonly string[], io: Io): Promise<number> {
  const end = argv.indexOf('--')
  const flags = end < 0 ? argv : argv.slice(0, end)
  const given = { args: end < 0 ? [] : argv.slice(end + 1), path: process.env.PATH }
  const request = await readRequest(flags, io, {
    command: 'api',
    extra: API_FLAGS,
    modeless: true,
    check: reader => readApiWanted(reader, { config: withoutConfig(reader), ...given }),
  })
  if (typeof request === 'number') return request
  const { config, extra } = request
  const wanted = await readApiWanted(extra, { config, ...given })
  if (extra.errors.length > 0) return usageErrors(io, 'api', extra.errors)
  const { log } = openLog({ format: config.logFormat, verbosity: config.verbosity })
  // By default, both signals end the process without removal of the socket.
  for (const signal of ['SIGHUP', 'SIGUSR2'] as const)
    io.on(signal, () => log.info(`${signal} ignored: kprobe api has no configuration file to read again`))
  return await new Session(config, wanted, { io, log }).run()
}

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
      openClient: its => openClient(its, { clock: systemClock, env: process.env, warn }),
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
        void metrics?.close()
        await server?.close()
        await this.#node.stop()
      }
    } catch (error) {
      this.#io.err(`kprobe api: ${oneLine(failureText(error))}\n`)
      return EXIT_FAILED
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
    const { metrics } = this.#wanted
    if (metrics === undefined) return undefined
    const { feed } = this.#node
    const http: HttpServer = openMetricsServer({
      at: metrics,
      clock: systemClock,
      hardFail: false,
      proxyMode: () => 'api',
      connectionsMax: this.#descriptors.metrics,
      metrics: createApiMetrics(
        () => ({ ...feed.status(), ...server?.counts() }),
        () => [
          { server: 'api', ...(server?.overShare ?? NONE_OVER_SHARE) },
          { server: 'metrics', ...http.overShare },
        ],
      ),
      slis: createSliMetrics(),
      configz: () => ({}),
      report: news => {
        if (news.kind === 'crowded') logCrowd(this.#log, 'metrics', news.crowd)
        if (news.kind !== 'failed') return
        const { address, error: err } = news
        this.#log.warn(
          { address, err },
          'cannot serve metrics; change the address with --metrics-bind-address',
        )
      },
    })
    return http
  }
}
