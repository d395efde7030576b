import {
  type Handler,
  type HttpAnswer,
  JSON_TYPE,
  listing,
  NOT_FOUND,
  PLAIN,
  readOnly,
} from '../http/connections.ts'
import { HttpServer, type HttpServerOptions } from '../http/server.ts'

interface MetricsServerOptions extends Omit<HttpServerOptions, 'handle'>, MetricsPages {}

interface MetricsPages {
  /** The body of /proxyMode. */
  readonly proxyMode: () => string
  /** The metrics in Prometheus' text format. */
  readonly metrics: () => Promise<string>
  readonly slis: SliSource
  /** The configuration as a KubeProxyConfiguration (v1alpha1), without secrets. */
  readonly configz: () => unknown
  /** Undefined if the feature gate ComponentFlagz is off. */
  readonly flagz?: (() => string) | undefined
  /** Undefined if the feature gate ComponentStatusz is off. It gets the other paths of this port. */
  readonly statusz?: ((paths: readonly string[]) => string) | undefined
}

export interface SliSource {
  /** Counts an answered health check of this port. */
  checked(): void
  text(): Promise<string>
}

/**
 * Serves the paths of kube-proxy's metrics port, and a list of them at /. Serves no /debug: readers of those paths expect
 * profiles in another format than that of this runtime.
 */
export function openMetricsServer(options: MetricsServerOptions): HttpServer {
  const { proxyMode, metrics, slis, configz, flagz, statusz, ...rest } = options
  const pages = { proxyMode, metrics, slis, configz, flagz, statusz }
  return new HttpServer({ ...rest, handle: metricsHandler(pages) })
}

export function metricsHandler(pages: MetricsPages): Handler {
  const metrics = shared(pages.metrics)
  return readOnly(async ({ path, query }) => {
    switch (path) {
      case '/':
        return listing(pathsOf(pages))
      case '/healthz':
        pages.slis.checked()
        return plain(query.has('verbose') ? '[+]ping ok\nhealthz check passed\n' : 'ok')
      case '/healthz/ping':
        return plain('ok')
      case '/proxyMode':
        return plain(pages.proxyMode())
      case '/metrics':
        return exposition(await metrics())
      case '/metrics/slis':
        return exposition(await pages.slis.text())
      case '/configz':
        return json({ 'kubeproxy.config.k8s.io': pages.configz() })
      case '/flagz':
        return pages.flagz === undefined ? NOT_FOUND : plain(pages.flagz())
      case '/statusz':
        return pages.statusz === undefined ? NOT_FOUND : plain(pages.statusz(pathsOf(pages)))
      default:
        return NOT_FOUND
    }
  })
}

function pathsOf({ flagz, statusz }: MetricsPages): readonly string[] {
  const flags = flagz === undefined ? [] : ['/flagz']
  const status = statusz === undefined ? [] : ['/statusz']
  return ['/configz', ...flags, '/healthz', '/metrics', '/metrics/slis', '/proxyMode', ...status]
}

/** Shares one rendering among all requests that arrive meanwhile. */
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

function exposition(body: string): HttpAnswer {
  return { status: 200, headers: { 'Content-Type': 'text/plain; version=0.0.4; charset=utf-8' }, body }
}

function json(value: unknown): HttpAnswer {
  return { status: 200, headers: JSON_TYPE, body: JSON.stringify(value) }
}
