import { systemClock } from '../base/clock.ts'
import { errorOf } from '../base/errors.ts'
import type { Log } from '../base/log.ts'
import { aborted, EXIT_FINE, type Io } from '../cli/io.ts'
import { flaggedCommand } from '../cli/request.ts'
import { openServingLog, serveMetrics } from '../cli/serving.ts'
import type { Config } from '../config/config.ts'
import { type FlagReader, quote } from '../config/flag.ts'
import { API_TLS_FLAGS, RELAY_COMMAND_FLAGS, RELAY_FLAGS } from '../config/flags.ts'
import { readApiAddress, readApiTls } from '../config/own-flags.ts'
import { keepYoungGenerationSmall } from '../daemon/engine.ts'
import { logProblem } from '../daemon/intake-log.ts'
import { openClient } from '../daemon/open.ts'
import { apiDescriptors, processRoom, servicesBytes } from '../daemon/process-room.ts'
import { logCrowd } from '../daemon/servers.ts'
import type { HttpServer } from '../http/server.ts'
import { resolveOptions } from '../modes/resolve-options.ts'
import type { ApiClient } from '../source/kube/api-client.ts'
import { TokenReviews } from './admission.ts'
import { RelayClient } from './client.ts'
import { createRelayMetrics } from './metrics.ts'
import { ReportForwarder } from './node-report.ts'
import { NodeViews } from './node-views.ts'
import { type RelayServer, startRelayServer } from './server.ts'
import { RelayState } from './state.ts'
import { StateSource } from './state-source.ts'
import { Upstream } from './upstream.ts'

export const command = flaggedCommand({
  name: 'relay',
  description:
    'Watches the API server once, or another relay, and serves Services, EndpointSlices, Nodes and ServiceCIDRs to many\n' +
    'nodes over gRPC (incremental xDS). Nodes read with `kprobe run --source=relay:ADDRESS`. Holds nothing that the API\n' +
    'server does not have, and changes nothing. Needs no privileges.',
  listed: RELAY_COMMAND_FLAGS,
  flags: RELAY_FLAGS,
  modeless: true,
  read: readWanted,
  async run(wanted, { config }, io) {
    const log = openServingLog('relay', config, io)
    return await new Session({ config, wanted, io, log }).run()
  },
})

const DEFAULT_AUDIENCE = 'kprobe-relay'
const SERVICE_ACCOUNT = /^[a-z0-9]([-a-z0-9]*[a-z0-9])?\/[a-z0-9]([-a-z0-9.]*[a-z0-9])?$/
const DEFAULT_ADDRESS = 'unix:///run/kprobe/relay.sock'

type Wanted = ReturnType<typeof readWanted>

/** Reviews of tokens have a limit of their own: nodes that come at once do not wait for watches, and strangers are few. */
const REVIEWS = { qps: 200, burst: 200 } as const

function readWanted(reader: FlagReader, config?: Config) {
  if (config?.source.kind === 'file') reader.fail('--source', 'a relay reads from kube or relay:ADDRESS')
  if (config?.once === true) reader.fail('--once', 'is for `kprobe run`')
  const serviceAccounts = reader.list('token-service-accounts')
  for (const name of serviceAccounts)
    if (!SERVICE_ACCOUNT.test(name))
      reader.fail('--token-service-accounts', `${quote(name)} is not NAMESPACE/NAME of a ServiceAccount`)
  if (reader.given('token-audience') && serviceAccounts.length === 0)
    reader.fail('--token-audience', 'needs --token-service-accounts')
  const audience = reader.text('token-audience') ?? ''
  const tls = readApiTls(reader)
  const trustedUsers = reader.list('trusted-users')
  if (trustedUsers.length > 0 && tls === undefined && serviceAccounts.length === 0)
    reader.fail(
      '--trusted-users',
      'needs TLS or --token-service-accounts; without both, every client is trusted',
    )
  return {
    address: readApiAddress(reader, 'listen') ?? DEFAULT_ADDRESS,
    tls,
    hasSets: reader.bool('sets'),
    trustedUsers,
    hasMetrics: reader.given('metrics-bind-address'),
    serviceAccounts,
    audience: audience === '' ? DEFAULT_AUDIENCE : audience,
  }
}

interface SessionOptions {
  readonly config: Config
  readonly wanted: Wanted
  readonly io: Io
  readonly log: Log
}

class Session {
  readonly #options: SessionOptions
  readonly #state: RelayState
  readonly #descriptors = apiDescriptors(processRoom())
  readonly #views: NodeViews | undefined
  #refusedMs = Number.NEGATIVE_INFINITY

  constructor(options: SessionOptions) {
    this.#options = options
    const proxyName = options.config.serviceProxyName ?? ''
    this.#state = new RelayState({ clock: systemClock, wallMs: Date.now, proxyName })
    if (options.wanted.hasSets) this.#views = this.#openViews()
  }

  #openViews(): NodeViews {
    const { config, log } = this.#options
    const room = processRoom()
    return new NodeViews({
      clock: systemClock,
      resolving: resolveOptions(config, servicesBytes(room)),
      openSource: nodesChanged => new StateSource({ clock: systemClock, state: this.#state, nodesChanged }),
      failed: err => log.error({ err }, 'cannot compute Sets; keeping the last state'),
    })
  }

  async run(): Promise<number> {
    const { config, io, log } = this.#options
    const warn = (text: string): void => log.warn(text)
    const client = await openClient(config, { clock: systemClock, env: process.env, warn, parts: io.parts })
    const upstream = new Upstream({
      client,
      clock: systemClock,
      random: Math.random,
      state: this.#state,
      isRelay: config.source.kind === 'kube' && config.source.relay !== undefined,
      problem: problem => logProblem(log, problem),
    })
    const forwarder =
      client instanceof RelayClient
        ? new ReportForwarder({
            clock: systemClock,
            reports: this.#state.reports,
            call: () => client.reporting,
          })
        : undefined
    const reviewer = await this.#openReviewer()
    const server = await this.#serve(reviewer)
    log.info({ address: server.address, source: client.server }, 'relay listening')
    const metrics = this.#serveMetrics(server)
    keepYoungGenerationSmall()
    upstream.start()
    await aborted(io.signal)
    log.info('stopping; nodes continue at another relay')
    await server.close()
    await this.#views?.close()
    forwarder?.stop()
    await upstream.stop()
    await client.close()
    await reviewer?.close()
    void metrics?.close()
    return EXIT_FINE
  }

  /** A client of the API server for reviews of tokens; undefined where none are taken. */
  async #openReviewer(): Promise<ApiClient | undefined> {
    const { config, wanted, log } = this.#options
    if (wanted.serviceAccounts.length === 0) return undefined
    const warn = (text: string): void => log.warn(text)
    return await openClient(
      { client: { ...config.client, ...REVIEWS } },
      { clock: systemClock, env: process.env, warn },
    )
  }

  #refused(reason: string): void {
    const nowMs = systemClock.nowMs()
    // A log line every 10 s is enough.
    if (nowMs - this.#refusedMs < 10_000) return
    this.#refusedMs = nowMs
    this.#options.log.warn({ reason }, 'rejected a reader')
  }

  async #serve(reviewer: ApiClient | undefined): Promise<RelayServer> {
    const { wanted, log } = this.#options
    const views = this.#views
    return await startRelayServer({
      state: this.#state,
      sets: views && ((node, call) => views.watch(node, call)),
      trustedUsers: wanted.trustedUsers,
      address: wanted.address,
      tls: wanted.tls,
      tokens: reviewer && new TokenReviews({ ...wanted, client: reviewer, clock: systemClock }),
      unauthorized: reason => this.#refused(reason),
      clock: systemClock,
      connectionsMax: this.#descriptors.api,
      failed: err => log.warn({ err }, 'relay server error'),
      crowded: crowd => logCrowd(log, 'relay', crowd),
      rejected: reason => log.warn({ reason }, 'a reader rejected a response'),
    }).catch(thrown => {
      const { message } = errorOf(thrown)
      throw new Error(
        API_TLS_FLAGS.some(({ name }) => message.startsWith(`--${name}`)) ? message : `--listen: ${message}`,
      )
    })
  }

  #serveMetrics(server: RelayServer): HttpServer | undefined {
    const { wanted, config, log } = this.#options
    if (!wanted.hasMetrics) return undefined
    return serveMetrics('relay', {
      at: config.metricsBindAddress,
      log,
      overShare: () => server.overShare,
      create: overShare =>
        createRelayMetrics(this.#state.reports, () => ({ ...this.#now(server), overShare: overShare() })),
      ready: () => this.#isServing,
    })
  }

  #now({ counts, expiresMs }: RelayServer) {
    const heardMs = this.#state.heardMs()
    return {
      state: this.#state,
      counts,
      expiresMs,
      silentMs: heardMs === undefined ? undefined : systemClock.nowMs() - heardMs,
      isServing: this.#isServing,
      setsNodes: this.#views?.counts.nodes,
    }
  }

  get #isServing(): boolean {
    return this.#state.isComplete && !this.#state.isStale
  }
}
