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
  /** What /proxyMode says. */
  readonly proxyMode: () => string
  /** The metrics in Prometheus' text format. */
  readonly metrics: () => Promise<string>
  readonly slis: SliSource
  /** The configuration as a KubeProxyConfiguration (v1alpha1), without secrets. */
  readonly configz: () => unknown
  /** Undefined where the feature gate ComponentFlagz is off. */
  readonly flagz?: (() => string) | undefined
  /** The same of ComponentStatusz; it gets the other paths of this port. */
  readonly statusz?: ((paths: readonly string[]) => string) | undefined
}

export interface SliSource {
  /** A health check of this port was answered. */
  checked(): void
  text(): Promise<string>
}

/**
 * Serves what kube-proxy serves at its metrics port, and a list of the paths at /: /healthz, /metrics, /metrics/slis, /proxyMode, /configz, /flagz and /statusz.
 * There is nothing below /debug: profiles of this runtime are not in the format that readers of those paths expect.
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

/** One rendering for all who ask while it lasts. */
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
