import { systemClock } from '../base/clock.ts'
import { type Log, openLog } from '../base/log.ts'
import { NONE_OVER_SHARE, type OverShare } from '../base/shares.ts'
import type { BindAddress, Config } from '../config/config.ts'
import { apiDescriptors, processRoom } from '../daemon/process-room.ts'
import { logCrowd } from '../daemon/servers.ts'
import type { HttpServer } from '../http/server.ts'
import type { MetricSet } from '../telemetry/metric-set.ts'
import { createSliMetrics, openMetricsServer } from '../telemetry/metrics-server.ts'
import type { ServerOverShare } from '../telemetry/server-metrics.ts'
import type { Io } from './io.ts'

/** The commands that serve, and are no daemon of a node. */
type Serving = 'api' | 'relay'

/** Opens the log. By default, both signals end the process without removal of the socket. */
export function openServingLog(command: Serving, { logFormat, verbosity }: Config, io: Io): Log {
  const { log } = openLog({ format: logFormat, verbosity })
  for (const signal of ['SIGHUP', 'SIGUSR2'] as const)
    io.on(signal, () =>
      log.info(`${signal} ignored: kprobe ${command} has no configuration file to read again`),
    )
  return log
}

interface ServingMetrics {
  readonly at: BindAddress
  readonly log: Log
  readonly overShare: () => OverShare | undefined
  readonly create: (overShare: () => readonly ServerOverShare[]) => MetricSet
  readonly ready?: () => boolean
}

export function serveMetrics(
  command: Serving,
  { at, log, overShare, create, ready }: ServingMetrics,
): HttpServer {
  const set = create(() => [
    { server: command, ...(overShare() ?? NONE_OVER_SHARE) },
    { server: 'metrics', ...http.overShare },
  ])
  const http: HttpServer = openMetricsServer({
    at,
    clock: systemClock,
    hardFail: false,
    proxyMode: () => command,
    connectionsMax: apiDescriptors(processRoom()).metrics,
    metrics: format => set.text(format),
    slis: createSliMetrics(),
    configz: () => ({}),
    ready,
    report: news => {
      if (news.kind === 'crowded') logCrowd(log, 'metrics', news.crowd)
      if (news.kind !== 'failed') return
      const { address, error: err } = news
      log.warn({ address, err }, 'cannot serve metrics; change the address with --metrics-bind-address')
    },
  })
  return http
}
