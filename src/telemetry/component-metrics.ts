import type { Registry } from 'prom-client'
import type { BuildInfo } from '../base/build-info.ts'
import { LabelValues, metricSet } from './metric-set.ts'

/** The metrics of every Kubernetes component (component-base): build, features, and API requests. */
export interface ComponentMetrics {
  /** Counts one request. `status` is undefined for a request without an answer. */
  apiRequest(request: {
    readonly method: string
    /** Host and port of the API server. */
    readonly host: string
    readonly status: number | undefined
    readonly durationMs: number
  }): void
}

export interface FeatureState {
  readonly name: string
  /** `ALPHA`, `BETA`; empty for general availability. */
  readonly stage: string
  readonly enabled: boolean
}

export function createComponentMetrics(
  registry: Registry,
  build: BuildInfo,
  features: readonly FeatureState[],
): ComponentMetrics {
  addBuildInfo(registry, build)
  const feature = metricSet(registry, 'kubernetes_').gauge('feature_enabled', 'Feature gates: 1 is on.', [
    'name',
    'stage',
  ])
  for (const { name, stage, enabled } of features) feature.set({ name, stage }, enabled ? 1 : 0)
  const { counter, histogram } = metricSet(registry, 'rest_client_')
  const requests = counter('requests_total', 'Requests to the API server by status code.', [
    'code',
    'method',
    'host',
  ])
  const duration = histogram('request_duration_seconds', 'Time until the status of an answer.', {
    buckets: [0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60],
    labelNames: ['verb', 'host'],
  })
  const hosts = new LabelValues()
  return {
    apiRequest({ method, host, status, durationMs }) {
      const known = hosts.of(host)
      requests.inc({ code: codeText(status), method, host: known })
      duration.observe({ verb: method, host: known }, durationMs / 1000)
    },
  }
}

/** Formats a status as client-go does. */
function codeText(status: number | undefined): string {
  return status !== undefined && status >= 100 && status <= 599 ? String(status) : '<error>'
}

function addBuildInfo(registry: Registry, { version, commit, date }: BuildInfo): void {
  const [major = '', minor = ''] = version.split('.')
  const info = {
    major,
    minor,
    git_version: `v${version}`,
    git_commit: commit,
    git_tree_state: '',
    build_date: date,
    go_version: '',
    compiler: `node ${process.version}`,
    platform: `${process.platform}/${process.arch === 'x64' ? 'amd64' : process.arch}`,
  }
  const { gauge } = metricSet(registry, 'kubernetes_')
  const labelNames = [
    'major',
    'minor',
    'git_version',
    'git_commit',
    'git_tree_state',
    'build_date',
    'go_version',
    'compiler',
    'platform',
  ] as const
  gauge('build_info', 'Build of this program; always 1.', labelNames).set(info, 1)
  const own = { version, commit, date, node_version: process.version }
  const ownNames = ['version', 'commit', 'date', 'node_version'] as const
  metricSet(registry, 'kprobe_').gauge('build_info', 'Build of kprobe; always 1.', ownNames).set(own, 1)
}
