import type { Clock } from '../base/clock.ts'
import type { Log } from '../base/log.ts'
import type { OverShare } from '../base/shares.ts'
import type { ApiConfig, Config, RelaySourceConfig, UiConfig } from '../config/config.ts'
import type { Handler } from '../http/connections.ts'
import type { ServerNews } from '../http/server.ts'
import type { Resolved } from '../model/resolve.ts'
import type { KernelSockets } from '../modes/mode.ts'
import type { Transport } from '../netlink/transport.ts'
import type { ReconcilerEvent } from '../reconcile/pass.ts'
import type { ReconcilerStatus } from '../reconcile/reconciler.ts'
import type { ApiClient } from '../source/kube/api-client.ts'
import type { KernelState, SourceStatus } from '../source/source.ts'
import type { AdminPages } from '../telemetry/admin-server.ts'
import type { EventFact } from '../telemetry/event.ts'
import type { HealthTracker } from '../telemetry/health.ts'
import type { UnansweredCounts } from '../telemetry/metric-rows.ts'
import type { MetricSet } from '../telemetry/metric-set.ts'
import type { Metrics } from '../telemetry/metrics.ts'
import type { Flags } from '../telemetry/metrics-server.ts'
import type { ActiveMode } from './active-mode.ts'

/**
 * The parts of a daemon that do not serve Services. The daemon knows them by the interfaces of this file alone, and
 * loads each when the configuration requests it; src/optional-parts.ts is the registry of their code.
 */
export interface OptionalParts {
  readonly prover: (options: ProverOptions) => Promise<DaemonProver>
  readonly api: () => Promise<MakeApi>
  readonly page: () => Promise<(source: PageSource) => WebPage>
  readonly relayClient: (options: RelayClientOptions) => Promise<ApiClient>
  readonly unanswered: (options: UnansweredOptions) => Promise<DaemonUnanswered>
}

/** Reads the connections that met no reply, while the daemon runs. */
export interface DaemonUnanswered extends UnansweredCounts {
  stop(): Promise<void>
}

export interface UnansweredOptions {
  readonly clock: Clock
  readonly log: Log
  readonly nodeName: string
  /** Opens a socket to conntrack. */
  readonly openTransport: () => Transport
  /** Gives what the kernel holds; undefined before the first sync. */
  readonly held: () => Pick<ReconcilerStatus, 'table' | 'snapshot'> | undefined
  readonly tell: (fact: EventFact) => void
}

/** Follows packets through the rules in the kernel, while the daemon runs. */
export interface DaemonProver {
  /** The last proof, for relays; undefined before the first. */
  readonly last: KernelState['proof']
  /** Seconds since the last proof read the kernel, or since proofs are possible; 0 while they are not. */
  readonly ageS: number
  report(event: ReconcilerEvent): void
  stop(): Promise<void>
}

export interface ProverOptions {
  readonly clock: Clock
  readonly log: Log
  readonly nodeName: string
  readonly sockets: KernelSockets
  readonly activeMode: () => Pick<ActiveMode, 'held' | 'isPassing'> | undefined
  readonly tell: (fact: EventFact) => void
  readonly metrics: Metrics
  readonly health: Pick<HealthTracker, 'advise'>
  /** The folder of network settings; /proc/sys/net by default. */
  readonly sysctls?: string
}

/** The back-end API of a daemon. It serves resolved state, from the first complete one on. */
export interface DaemonApi {
  readonly overShare: OverShare
  addMetrics(set: MetricSet): void
  /** Listens. Gives false after a failure, which it logs. */
  listen(): Promise<boolean>
  offer(resolved: Pick<Resolved, 'snapshot' | 'table'>): void
  close(): Promise<void>
}

export type MakeApi = (options: DaemonApiOptions) => DaemonApi

export interface DaemonApiOptions {
  readonly clock: Clock
  readonly log: Log
  readonly config: ApiConfig
  readonly nodeName: string
  readonly connectionsMax: number
  readonly source: () => SourceStatus | undefined
}

/** The web page of a daemon. Only its server is loaded before the first request. */
export interface WebPage {
  /** Answers at the admin socket, to whose owner the kernel restricts it. */
  readonly atSocket: Handler
  listen(config: UiConfig, options: UiServerOptions): UiServer
  close(): Promise<void>
}

/** The part of the daemon that the web page shows. */
export interface PageSource extends Pick<AdminPages, 'status' | 'health' | 'receipts' | 'snapshot'> {
  readonly clock: Clock
  readonly wallMs: () => number
  readonly version: string
  readonly config: () => Config
  readonly flags: Flags
  /** Gives the configuration as kube-proxy's API type. */
  readonly configz: () => unknown
  /** Gives what the kernel should hold; undefined before the daemon programs it. */
  readonly held: () => ReconcilerStatus | undefined
  /** The folder of network settings; /proc/sys/net by default. */
  readonly sysctls?: string
}

export interface UiServer {
  readonly overShare: OverShare
  close(): void
}

export interface UiServerOptions {
  readonly clock: Clock
  readonly log: Log
  readonly report: (news: ServerNews) => void
}

/** A source of relays: `kube` is the API server behind them. */
export interface RelayClientOptions extends RelaySourceConfig {
  readonly nodeName: string
  readonly proxyName: string
  readonly kube: ApiClient
  readonly clock: Clock
  readonly say: (text: string) => void
}
