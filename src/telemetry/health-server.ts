import { type Handler, type HttpAnswer, JSON_TYPE, listing, NOT_FOUND } from '../http/connections.ts'
import { HttpServer, type HttpServerOptions } from '../http/server.ts'
import type { HealthAnswer } from './health.ts'

interface HealthServerOptions extends Omit<HttpServerOptions, 'handle'> {
  readonly health: HealthSource
  /** Counts a probe for the metrics. */
  readonly probed: (probe: 'healthz' | 'livez', code: number) => void
}

interface HealthSource {
  readiness(): HealthAnswer
  liveness(): HealthAnswer
}

/** Serves /healthz and /livez for any method, as kube-proxy does, and a list of both at /. */
export function openHealthServer(options: HealthServerOptions): HttpServer {
  const { health, probed, ...rest } = options
  return new HttpServer({ ...rest, handle: healthHandler(health, probed) })
}

export function healthHandler(health: HealthSource, probed: HealthServerOptions['probed']): Handler {
  return ({ path }) => {
    if (path === '/') return listing(['/healthz', '/livez'])
    if (path !== '/healthz' && path !== '/livez') return NOT_FOUND
    const isReadiness = path === '/healthz'
    const answer = isReadiness ? health.readiness() : health.liveness()
    probed(isReadiness ? 'healthz' : 'livez', answer.code)
    return httpAnswer(answer)
  }
}

function httpAnswer({ code, body }: HealthAnswer): HttpAnswer {
  return { status: code, headers: JSON_TYPE, body: JSON.stringify(body) }
}
