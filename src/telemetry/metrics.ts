import type { BuildInfo } from '../base/build-info.ts'
import { FAMILIES, type Family } from '../base/ip.ts'
import {
  addProcessMetrics,
  type ComponentMetrics,
  createComponentMetrics,
  type FeatureState,
} from './component-metrics.ts'
import { addConnectionMetrics, type ConnectionMetricsOptions } from './connection-metrics.ts'
import { Registry } from './metric-set.ts'
import { type ModeMetric, ModeMetrics } from './mode-metrics.ts'
import { createProxyMetrics, type ProxyMetrics } from './proxy-metrics.ts'
import { type ApiNumbers, addApiMetrics, addServerMetrics, type ServersState } from './server-metrics.ts'
import {
  type ConntrackMetrics,
  createConntrackMetrics,
  createNodeConditionMetrics,
  createProofMetrics,
  createSavedStateMetrics,
  createSourceMetrics,
  createWorkMetrics,
  type NodeConditionMetrics,
  type ProofMetrics,
  type SavedStateMetrics,
  type SourceMetrics,
  type WorkMetrics,
} from './work-metrics.ts'

/** The metrics of the daemon. The daemon reports values as they change; a scrape reads the others. */
export interface Metrics extends WorkMetrics, SourceMetrics, ComponentMetrics, ConntrackMetrics {
  /** kube-proxy's metrics. */
  readonly proxy: ProxyMetrics
  readonly savedState: SavedStateMetrics
  readonly nodeCondition: NodeConditionMetrics
  readonly proof: ProofMetrics
  /** Gives all metrics in Prometheus' text format. */
  text(): Promise<string>
}

export interface MetricsOptions {
  /** The families that this process programs. */
  readonly families: readonly Family[]
  readonly build: BuildInfo
  readonly features: readonly FeatureState[]
  /** Seconds since the last message of the source. */
  readonly staleS: () => number | undefined
  /** Whether a source of relays reads from the API server; undefined for other sources. */
  readonly isDirect: () => boolean | undefined
  readonly servers: () => ServersState
  /** New connections by Service and endpoint; undefined omits them. */
  readonly connections: ConnectionMetricsOptions | undefined
  /** Metrics of the active mode alone. */
  readonly ofMode: () => Promise<readonly ModeMetric[]>
  /** Numbers of the back-end API; undefined omits its metrics. */
  readonly api: (() => ApiNumbers) | undefined
}

const NOTHING: MetricsOptions = {
  families: FAMILIES,
  build: { version: '0.0.0', commit: '', date: '' },
  features: [],
  staleS: () => undefined,
  isDirect: () => undefined,
  servers: () => ({ ready: false }),
  connections: undefined,
  ofMode: () => Promise.resolve([]),
  api: undefined,
}

export function createMetrics(options: Partial<MetricsOptions> = {}): Metrics {
  const all = { ...NOTHING, ...options }
  const { families, build, features, servers, connections, ofMode, api } = all
  const registry = new Registry()
  addProcessMetrics(registry)
  if (connections !== undefined) addConnectionMetrics(registry, connections)
  addServerMetrics(registry, servers)
  if (api !== undefined) addApiMetrics(registry, api)
  const modeMetrics = new ModeMetrics(registry)
  return {
    ...createWorkMetrics(registry),
    ...createConntrackMetrics(registry),
    ...createSourceMetrics(registry, all),
    ...createComponentMetrics(registry, build, features),
    proxy: createProxyMetrics(registry, families),
    savedState: createSavedStateMetrics(registry),
    nodeCondition: createNodeConditionMetrics(registry),
    proof: createProofMetrics(registry),
    text: async () => {
      modeMetrics.take(await ofMode())
      return await registry.text()
    },
  }
}
