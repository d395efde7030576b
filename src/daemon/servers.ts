import { buildText } from '../base/build-info.ts'
import { codeOf } from '../base/errors.ts'
import { formatIp, formatIpPort } from '../base/ip.ts'
import type { Log } from '../base/log.ts'
import { type Crowd, NONE_OVER_SHARE, type OverShare } from '../base/shares.ts'
import { rfc3339 } from '../base/text.ts'
import type { BindAddress, Config } from '../config/config.ts'
import { modelFlags } from '../config/daemon-config.ts'
import { isGateOn } from '../config/feature-gates.ts'
import type { HttpServer, ServerNews } from '../http/server.ts'
import type { FrontendTable, ServiceFrontends } from '../model/frontend.ts'
import { podPlaces } from '../model/pod-names.ts'
import type { Snapshot } from '../model/snapshot.ts'
import type { CredentialsEnd } from '../source/kube/api-client.ts'
import { type AdminPages, openAdminServer } from '../telemetry/admin-server.ts'
import { type EventFact, healthCheckFailed, serverFailed } from '../telemetry/event.ts'
import { openHealthServer } from '../telemetry/health.ts'
import {
  createSliMetrics,
  type Flags,
  flagzText,
  openMetricsServer,
  statuszText,
} from '../telemetry/metrics-server.ts'
import { countProbe } from '../telemetry/proxy-metrics.ts'
import type { ServersState } from '../telemetry/server-metrics.ts'
import { ServiceHealth, type ServiceHealthNews } from '../telemetry/service-health.ts'
import type { ActiveMode } from './active-mode.ts'
import { sourceText } from './banner.ts'
import { servedJson } from './health-page.ts'
import { networkNamespace } from './instance-lock.ts'
import type { Intake } from './intake.ts'
import type { DaemonIo } from './io.ts'
import type { Observer } from './observer.ts'
import type { PageSource, UiServer, WebPage } from './optional-parts.ts'
import type { DescriptorBudget } from './process-room.ts'
import type { RefusedPackets } from './refused-packets.ts'
import { serviceJson, snapshotJson } from './saved/snapshot-json.ts'

interface ServersOptions
  extends Pick<DaemonIo, 'clock' | 'log' | 'configz' | 'flags' | 'wallMs' | 'build' | 'origins'>,
    Pick<PagesOptions, 'intake' | 'config' | 'activeMode' | 'credentials' | 'refusedBefore'> {
  readonly descriptors: DescriptorBudget
  /** The back-end API, which listens by itself. */
  readonly api: { readonly overShare: OverShare } | undefined
  /** Makes the web page; without it, there is none. */
  readonly page?: ((source: PageSource) => WebPage) | undefined
  readonly observer: Observer
  readonly tell: (fact: EventFact) => void
  /** A server could not listen, and --bind-address-hard-fail is set. */
  readonly failed: () => void
}

/** The servers of the daemon: health, metrics, the Services' health check node ports, and the admin socket. */
export class Servers {
  readonly #options: ServersOptions
  readonly #services: ServiceHealth
  readonly #slis = createSliMetrics()
  readonly #flags: Flags
  readonly #version: string
  readonly #pages: AdminPages
  readonly #page: WebPage | undefined
  #health: HttpServer | undefined
  #metrics: HttpServer | undefined
  #admin: HttpServer | undefined
  #ui: UiServer | undefined
  #config: Config | undefined
  #table: FrontendTable | undefined
  /** kube-proxy's ports that are in use, with the server that would listen there. */
  readonly #inUse = new Map<string, 'healthz' | 'metrics'>()

  constructor(options: ServersOptions) {
    this.#options = options
    const { clock, observer, descriptors, activeMode, page, flags = new Map() } = options
    this.#flags = flags
    this.#version = buildText(options.build)
    this.#pages = adminPages({ ...options, version: this.#version, nowMs: () => clock.nowMs() })
    const source = { ...this.#pages, ...options, version: this.#version, flags }
    this.#page = page?.({ ...source, held: () => activeMode()?.status })
    this.#services = new ServiceHealth({
      clock,
      healthy: () => observer.health.healthy,
      listenersMax: descriptors.healthCheckListeners,
      connectionsMax: descriptors.healthChecks,
      report: news => this.#serviceNews(news),
    })
  }

  get state(): ServersState {
    const { api, observer } = this.#options
    return {
      ready: observer.health.readiness().code === 200,
      healthChecks: this.#services.counts,
      overShare: [
        { server: 'healthz', ...(this.#health?.overShare ?? NONE_OVER_SHARE) },
        { server: 'metrics', ...(this.#metrics?.overShare ?? NONE_OVER_SHARE) },
        { server: 'health_check_node_ports', ...this.#services.overShare },
        { server: 'admin', ...(this.#admin?.overShare ?? NONE_OVER_SHARE) },
        ...(this.#ui === undefined ? [] : [{ server: 'ui', ...this.#ui.overShare } as const]),
        ...(api === undefined ? [] : [{ server: 'api', ...api.overShare } as const]),
      ],
    }
  }

  /** Lists kube-proxy's ports that another process holds. */
  get portsInUse(): readonly string[] {
    return [...this.#inUse.keys()]
  }

  /** Listens at the addresses of `config`, and closes other listeners. */
  apply(config: Config): void {
    const before = this.#config
    this.#config = config
    for (const [address, server] of this.#inUse)
      if (!isSamePlace(before?.[`${server}BindAddress`], config[`${server}BindAddress`]))
        this.#inUse.delete(address)
    const isSame = (field: 'healthzBindAddress' | 'metricsBindAddress') =>
      before?.bindAddressHardFail === config.bindAddressHardFail && isSamePlace(before[field], config[field])
    if (!isSame('healthzBindAddress')) this.#applyHealth(config)
    if (!isSame('metricsBindAddress')) this.#applyMetrics(config)
    if (before !== undefined) return
    this.#openAdmin(config)
    this.#openUi(config)
  }

  update(table: FrontendTable): void {
    this.#table = table
    this.#services.update(table)
  }

  async close(): Promise<void> {
    void this.#health?.close()
    void this.#metrics?.close()
    void this.#ui?.close()
    this.#services.close()
    await this.#admin?.close()
    await this.#page?.close()
  }

  #applyHealth(config: Config): void {
    const { clock, observer } = this.#options
    const { healthzBindAddress, bindAddressHardFail } = config
    void this.#health?.close()
    this.#health = undefined
    if (healthzBindAddress === undefined) return
    this.#health = openHealthServer({
      at: healthzBindAddress,
      clock,
      connectionsMax: this.#options.descriptors.healthz,
      hardFail: bindAddressHardFail,
      health: {
        readiness: () => observer.health.readiness(),
        liveness: () => observer.health.liveness(),
        advice: () => observer.health.advice(),
      },
      probed: (probe, code) => countProbe(observer.metrics, probe, code),
      report: news => this.#serverNews('healthz', config, news),
    })
  }

  #applyMetrics(config: Config): void {
    const { clock, observer, configz } = this.#options
    const { metricsBindAddress, bindAddressHardFail, featureGates } = config
    void this.#metrics?.close()
    this.#metrics = openMetricsServer({
      at: metricsBindAddress,
      clock,
      connectionsMax: this.#options.descriptors.metrics,
      hardFail: bindAddressHardFail,
      proxyMode: () => this.#proxyMode,
      metrics: format => observer.metrics.text(format),
      slis: this.#slis,
      configz,
      flagz: isGateOn(featureGates, 'ComponentFlagz') ? () => flagzText(this.#flags) : undefined,
      statusz: isGateOn(featureGates, 'ComponentStatusz') ? paths => this.#statusz(paths) : undefined,
      report: news => this.#serverNews('metrics', config, news),
    })
  }

  get #proxyMode(): string {
    const { activeMode, config } = this.#options
    return activeMode()?.mode ?? config().proxyMode
  }

  #statusz(paths: readonly string[]): string {
    const { observer, wallMs } = this.#options
    const { code, body } = observer.health.readiness()
    const lastSync = Object.fromEntries(
      Object.entries(body.status).map(([family, { lastUpdated }]) => [family, lastUpdated]),
    )
    const work = {
      wallMs: wallMs(),
      paths,
      mode: this.#proxyMode,
      table: this.#table,
      ready: code === 200,
      lastSync,
      staleSeconds: body.staleSeconds,
    }
    const { startedWallMs, nodeName } = observer
    return statuszText({ startedWallMs, version: this.#version, nodeName }, work)
  }

  #openAdmin({ adminSocket }: Config): void {
    const { clock } = this.#options
    if (adminSocket === '') return
    const report = (news: ServerNews) => this.#adminNews(news)
    this.#admin = openAdminServer({
      ...this.#pages,
      path: adminSocket,
      clock,
      report,
      page: this.#page?.atSocket,
    })
  }

  #openUi({ ui }: Config): void {
    const { clock, log } = this.#options
    const page = this.#page
    if (ui === undefined || page === undefined) return
    const report = (news: ServerNews) => this.#logServer('ui', 'ui-address', news)
    this.#ui = page.listen(ui, { clock, log, report })
  }

  #serverNews(server: 'healthz' | 'metrics', { nodeName }: Config, news: ServerNews): void {
    this.#logServer(server, `${server}-bind-address`, news)
    if (news.kind === 'listening') this.#inUse.delete(news.address)
    if (news.kind === 'failed' && codeOf(news.error) === 'EADDRINUSE' && KUBE_PROXY_PORTS.test(news.address))
      this.#inUse.set(news.address, server)
    if (news.kind !== 'failed' || news.retryMs !== undefined) return
    this.#options.tell(serverFailed(nodeName, server, news.error))
    this.#options.failed()
  }

  /** A daemon serves its node without this socket, which most start without having named it. */
  #adminNews(news: ServerNews): void {
    if (news.kind !== 'failed') this.#logServer('admin', 'admin-socket', news)
    else this.#options.log.warn({ err: news.error }, `${cannotListen('admin', news)}; ${NO_ADMIN_SOCKET}`)
  }

  #logServer(server: string, flag: string, news: ServerNews): void {
    const { log } = this.#options
    const { address } = news
    const change = `change with --${flag}`
    if (news.kind === 'listening') log.info({ address }, `${server}: listening`)
    else if (news.kind === 'crowded') logCrowd(log, server, news.crowd)
    else if (news.kind === 'trouble') log.debug({ address, err: news.error }, `${server}: connection failed`)
    else if (news.retryMs === undefined)
      log.fatal({ err: news.error }, `${cannotListen(server, news)}; ${change}`)
    else log.error({ err: news.error }, `${cannotListen(server, news)}; ${change}`)
  }

  #serviceNews(news: ServiceHealthNews): void {
    const { log, tell, observer } = this.#options
    switch (news.kind) {
      case 'listening':
        log.debug({ service: news.service, address: news.address }, 'health check node port: listening')
        break
      case 'failed':
        log.warn({ service: news.service, err: news.error }, cannotListen('health check node port', news))
        tell(healthCheckFailed(observer.nodeName, news))
        break
      case 'trouble':
        log.debug({ err: news.error }, 'health check node port: connection failed')
        break
      case 'crowded':
        logCrowd(log, 'health check node port', news.crowd)
        break
    }
  }
}

/** Of its health and metrics. */
const KUBE_PROXY_PORTS = /:(?:10256|10249)$/

const NO_ADMIN_SOCKET =
  'commands cannot query this daemon; choose another path with --admin-socket, or none with --admin-socket='

function isSamePlace(a: BindAddress | undefined, b: BindAddress | undefined): boolean {
  return a?.ip === b?.ip && a?.port === b?.port
}

interface Failure {
  readonly address: string
  readonly error: Error
  readonly retryMs: number | undefined
}

function cannotListen(server: string, { address, error, retryMs }: Failure): string {
  const why = codeOf(error) === 'EADDRINUSE' ? ' (in use)' : ''
  const retry = retryMs === undefined ? '' : `; retrying every ${retryMs / 1000} s`
  return `${server}: cannot listen on ${address}${why}${retry}`
}

interface PagesOptions {
  readonly activeMode: () => ActiveMode | undefined
  readonly config: () => Config
  readonly version: string
  readonly intake: Pick<Intake, 'snapshot' | 'complete' | 'status' | 'refused' | 'isStale'>
  readonly nowMs: () => number
  readonly observer: Pick<
    Observer,
    'receipts' | 'refusedSince' | 'metrics' | 'health' | 'repairs' | 'startedWallMs'
  >
  readonly configz: () => unknown
  readonly origins: DaemonIo['origins']
  /** Gives when the credentials for the API server expire; undefined without an API server. */
  readonly credentials: () => Promise<CredentialsEnd | undefined>
  /** The packets that the rules had refused a minute ago, as far as they were read then. */
  readonly refusedBefore: () => RefusedPackets['before']
}

/** Commits that /status lists; /receipts has more. */
const COMMITS_SHOWN = 5
/** Services that the kernel rejects, which /health names. */
const REJECTED_SHOWN = 3

/** Makes the pages of the admin socket: plain values, computed for each request, Service by Service. */
function adminPages(options: PagesOptions): AdminPages {
  const { activeMode, config, version, intake, nowMs, observer, configz } = options
  const progress = (status: ActiveMode['status'] | undefined) => ({
    snapshot: intake.snapshot.number,
    synced: status?.syncedNumber,
    error: status?.error?.message,
    source: sourceJson(intake, nowMs()),
  })
  return {
    state() {
      const status = activeMode()?.status
      const quarantined = quarantinedJson(status)
      const services = servicesJson(status?.table?.services.values() ?? [])
      return { ...progress(status), quarantined, services }
    },
    status() {
      const active = activeMode()
      const status = active?.status
      return {
        mode: active?.mode,
        startedAt: rfc3339(observer.startedWallMs),
        ...progress(status),
        quarantined: status?.quarantined.length,
        services: status?.table?.services.size,
        failedOver: failedOverJson(status?.snapshot),
        repairs: observer.repairs,
        commits: observer.receipts.lines.slice(-COMMITS_SHOWN),
      }
    },
    health: () => healthJson(options),
    plan: () => activeMode()?.pending(),
    receipts: () => observer.receipts.lines,
    services: () => intake.snapshot.services.keys(),
    pods: () => podsJson(intake.snapshot),
    debug: async () => ({
      started: rfc3339(observer.startedWallMs),
      configuration: configz(),
      readiness: observer.health.readiness(),
      liveness: observer.health.liveness(),
      metrics: await observer.metrics.text(),
    }),
    config: async () => ({ version, network: await networkNamespace(), flags: modelFlags(config()) }),
    snapshot: () => ({
      complete: intake.complete,
      source: sourceJson(intake, nowMs()),
      quarantined: quarantinedJson(activeMode()?.status),
      servicesBytes: activeMode()?.servicesBytes,
      refusedObjects: intake.refused
        .map(({ refusal }) => refusal)
        .filter(({ service }) => service !== undefined),
      refusedSince: observer.refusedSince(),
      ...snapshotJson(intake.snapshot),
    }),
  }
}

/** Endpoints that /status lists; the metric counts all. */
const FAILED_OVER_SHOWN = 50

/** Lists the endpoints that get no new connections because they left some without a reply. */
function failedOverJson(snapshot: Snapshot | undefined) {
  const all = [...(snapshot?.silent.entries() ?? [])].flatMap(([service, { endpoints }]) =>
    endpoints.map(({ protocol, ip, port }) => ({ service, protocol, endpoint: formatIpPort(ip, port) })),
  )
  return all.slice(0, FAILED_OVER_SHOWN)
}

/** Says how well the daemon knows the objects. */
function sourceJson(intake: PagesOptions['intake'], nowMs: number) {
  const { missing, trouble, heardMs } = intake.status ?? {}
  return {
    missing,
    trouble,
    stale: intake.isStale(intake.snapshot) ? true : undefined,
    silentMs: heardMs === undefined ? undefined : Math.round(nowMs - heardMs),
  }
}

/** Lists Services, and the IP family, that the kernel rejects, with its reasons. */
function quarantinedJson(status: ActiveMode['status'] | undefined) {
  const families = status?.failedFamily === undefined ? [] : [status.failedFamily]
  const rejected = [
    ...families.map(each => ({ service: each.family, ...each })),
    ...(status?.quarantined ?? []),
  ]
  return status && rejected.map(({ service, error }) => ({ service, error: error.message }))
}

async function healthJson(options: PagesOptions) {
  const { activeMode, config, intake, observer, origins, credentials, refusedBefore } = options
  const status = activeMode()?.status
  return {
    modeFrom: origins.mode,
    sourceKind: sourceText(config().source),
    readiness: observer.health.readiness().body,
    rejected: quarantinedJson(status)?.slice(0, REJECTED_SHOWN),
    ...servedJson(status?.table, intake.refused),
    credentials: await credentials(),
    refusedPackets: refusedBefore(),
  }
}

function* podsJson({ sliceByKey }: Snapshot) {
  for (const { ip, ...its } of podPlaces(sliceByKey.values())) yield { ...its, ip: formatIp(ip) }
}

function* servicesJson(services: readonly ServiceFrontends[]) {
  for (const service of services) yield serviceJson(service)
}

/** Logs which client lost connections to a server, and whether the server closed or refused them. */
export function logCrowd(log: Log, server: string, { client, service, full, evicted, refused }: Crowd): void {
  const facts = { client, ...(service === undefined ? {} : { service }), full, evicted, refused }
  const closed = evicted > 0 ? ['closed the longest idle ones of the largest client'] : []
  const busy = refused > 0 ? ['refused new ones because the others are busy'] : []
  log.warn(facts, `${server}: too many connections; ${[...closed, ...busy].join('; ')}`)
}
