import type { Family } from '../base/ip.ts'
import { count } from '../base/text.ts'
import {
  type Handler,
  type HttpAnswer,
  type HttpRequest,
  JSON_TYPE,
  listing,
  NOT_FOUND,
  PLAIN,
  readOnly,
} from '../http/connections.ts'
import { HttpServer, type HttpServerOptions } from '../http/server.ts'
import { endpointCount, type FrontendTable } from '../model/frontend.ts'
import { counter, gauge, MetricSet, type MetricsFormat, type Rows } from './metric-set.ts'

interface MetricsServerOptions extends Omit<HttpServerOptions, 'handle'>, MetricsPages {}

interface MetricsPages {
  readonly proxyMode: () => string
  readonly metrics: (format: MetricsFormat) => Promise<string>
  readonly slis: SliSource
  /** Tests whether /readyz answers 200; absent where the port has no such page. */
  readonly ready?: (() => boolean) | undefined
  /** The configuration as a KubeProxyConfiguration (v1alpha1), without secrets. */
  readonly configz: () => unknown
  /** Undefined if the feature gate ComponentFlagz is off. */
  readonly flagz?: (() => string) | undefined
  /** Undefined if the feature gate ComponentStatusz is off. It gets the other paths of this port. */
  readonly statusz?: ((paths: readonly string[]) => string) | undefined
}

interface SliSource {
  checked(): void
  text(format?: MetricsFormat): Promise<string>
}

/**
 * Serves the paths of kube-proxy's metrics port, and a list of them at /. Serves no /debug: readers of those paths expect
 * profiles in another format than that of this runtime.
 */
export function openMetricsServer(options: MetricsServerOptions): HttpServer {
  const { proxyMode, metrics, slis, ready, configz, flagz, statusz, ...rest } = options
  const pages = { proxyMode, metrics, slis, ready, configz, flagz, statusz }
  return new HttpServer({ ...rest, handle: metricsHandler(pages) })
}

type Page = (request: HttpRequest) => HttpAnswer | Promise<HttpAnswer>

export function metricsHandler(pages: MetricsPages): Handler {
  const { slis, ready, proxyMode, configz, flagz, statusz } = pages
  const metrics = {
    text: shared(() => pages.metrics('text')),
    openmetrics: shared(() => pages.metrics('openmetrics')),
  }
  const exposed = async ({ accept }: HttpRequest, text: (format: MetricsFormat) => Promise<string>) => {
    const format = formatFor(accept)
    return { status: 200, headers: { 'Content-Type': CONTENT_TYPES[format] }, body: await text(format) }
  }
  const all: Readonly<Record<string, Page | undefined>> = {
    '/configz': () => json({ 'kubeproxy.config.k8s.io': configz() }),
    '/flagz': flagz && (() => plain(flagz())),
    '/healthz': ({ query }) => {
      slis.checked()
      return plain(query.has('verbose') ? '[+]ping ok\nhealthz check passed\n' : 'ok')
    },
    '/metrics': request => exposed(request, format => metrics[format]()),
    '/metrics/slis': request => exposed(request, format => slis.text(format)),
    '/proxyMode': () => plain(proxyMode()),
    '/readyz': ready && (() => (ready() ? plain('ok') : { ...plain('not ready'), status: 503 })),
    '/statusz': statusz && (() => plain(statusz(paths))),
  }
  const paths = Object.keys(all).filter(path => all[path] !== undefined)
  const byPath = new Map(Object.entries(all))
  byPath.set('/', () => listing(paths)).set('/healthz/ping', () => plain('ok'))
  return readOnly(async request => (await byPath.get(request.path)?.(request)) ?? NOT_FOUND)
}

function shared(render: () => Promise<string>): () => Promise<string> {
  let running: Promise<string> | undefined
  return () => {
    running ??= render().finally(() => {
      running = undefined
    })
    return running
  }
}

function plain(body: string): HttpAnswer {
  return { status: 200, headers: PLAIN, body }
}

const CONTENT_TYPES: Readonly<Record<MetricsFormat, string>> = {
  text: 'text/plain; version=0.0.4; charset=utf-8',
  openmetrics: 'application/openmetrics-text; version=1.0.0; charset=utf-8',
}

/** Gives the format of a scrape: OpenMetrics where Accept ranks it before text/plain, which it does by its order among equals. */
export function formatFor(accept = ''): MetricsFormat {
  const ranked = accept.split(',').flatMap(range => {
    const [type = '', ...parameters] = range.split(';').map(part => part.trim().toLowerCase())
    const format = FORMATS.get(type)
    const q = Number(parameters.find(each => each.startsWith('q='))?.slice(2) ?? 1)
    return format === undefined || !(q > 0) ? [] : [{ format, q }]
  })
  return ranked.sort((a, b) => b.q - a.q)[0]?.format ?? 'text'
}

const FORMATS: ReadonlyMap<string, MetricsFormat> = new Map([
  ['application/openmetrics-text', 'openmetrics'],
  ['text/plain', 'text'],
  ['text/*', 'text'],
  ['*/*', 'text'],
])

function json(value: unknown): HttpAnswer {
  return { status: 200, headers: JSON_TYPE, body: JSON.stringify(value) }
}

const SLIS = {
  kubernetes_healthcheck: gauge('Result of a health check: 1 is success.', 'name', 'type'),
  kubernetes_healthchecks_total: counter('Health checks by result.', 'name', 'type', 'status'),
} satisfies Rows<undefined>

export function createSliMetrics(): SliSource {
  const set = new MetricSet()
  const metrics = set.add(SLIS, () => undefined)
  const check = { name: 'ping', type: 'healthz' } as const
  return {
    checked() {
      metrics.kubernetes_healthcheck.set(check, 1)
      metrics.kubernetes_healthchecks_total.inc({ ...check, status: 'success' })
    },
    text: format => set.text(format),
  }
}

export type Flags = ReadonlyMap<string, string>

interface ProcessStatus {
  readonly startedWallMs: number
  readonly version: string
  readonly nodeName: string
}

interface WorkStatus {
  readonly wallMs: number
  readonly paths: readonly string[]
  readonly mode: string
  /** The frontends in the kernel; undefined before the first sync. */
  readonly table: FrontendTable | undefined
  readonly ready: boolean
  readonly lastSync: Readonly<Partial<Record<Family, string>>>
  /** Age of the saved state that is served; undefined while none is. */
  readonly staleSeconds?: number | undefined
}

const NOTE = 'This page is for people; its format may change at any time.'

export function flagzText(flags: Flags): string {
  const lines = [...flags].map(([name, value]) => `${name}=${value}`).sort()
  return ['', 'kube-proxy flagz', NOTE, '', ...lines, ''].join('\n')
}

/** Formats kube-proxy's /statusz (feature gate ComponentStatusz), with additional lines. */
export function statuszText(
  { startedWallMs, version, nodeName }: ProcessStatus,
  { wallMs, paths, mode, table, ready, lastSync, staleSeconds }: WorkStatus,
): string {
  const facts = {
    Started: new Date(startedWallMs).toUTCString(),
    Up: upText(wallMs - startedWallMs),
    'Node.js version': process.version,
    'Binary version': version,
    Paths: paths.join(' '),
    Node: nodeName,
    'Proxy mode': mode,
    Programmed: table === undefined ? 'nothing yet' : programmedText(table),
    ...relayedFacts(table),
    'Last sync': Object.entries(lastSync)
      .map(([family, at]) => `${family} ${at}`)
      .join(', '),
    ...(staleSeconds === undefined
      ? {}
      : { Stale: `the saved state is served; the API server confirmed it ${staleSeconds} s ago` }),
    Ready: ready ? 'yes' : 'no (see /healthz)',
  }
  const lines = Object.entries(facts).map(([name, value]) => `${name}: ${value}`)
  return ['', 'kube-proxy statusz', NOTE, '', ...lines, ''].join('\n')
}

function relayedFacts(table: FrontendTable | undefined): Readonly<Record<string, string>> {
  const families = table?.forwardedAtLocalhost
  return families === undefined ? {} : { Relayed: `node ports at localhost, ${families.join(' and ')}` }
}

/** A port of two families counts twice, and so do endpoints of two ports. */
function programmedText({ services }: FrontendTable): string {
  let ports = 0
  let endpoints = 0
  for (const service of services.values())
    for (const port of service.ports) {
      ports++
      endpoints += endpointCount(port)
    }
  return `${count(services.size, 'Service')}, ${count(ports, 'port')}, ${count(endpoints, 'endpoint')}`
}

function upText(ms: number): string {
  const seconds = Math.max(0, Math.floor(ms / 1000))
  const two = (value: number) => String(value % 60).padStart(2, '0')
  return `${Math.floor(seconds / 3600)} hr ${two(Math.floor(seconds / 60))} min ${two(seconds)} sec`
}
