import type { Clock } from '../base/clock.ts'
import { FAMILIES } from '../base/ip.ts'
import type { Log } from '../base/log.ts'
import type { FlowEvent } from '../flows/events.ts'
import { FlowReconciler } from '../flows/flow-reconciler.ts'
import { type ConntrackClient, createConntrackClient } from '../kernel/conntrack/client.ts'
import type { FrontendTable } from '../model/frontend.ts'
import type { Snapshot } from '../model/snapshot.ts'
import type { Transport } from '../netlink/transport.ts'
import type { Metrics } from '../telemetry/metrics.ts'

export interface FlowsOptions {
  readonly clock: Clock
  readonly random: () => number
  readonly log: Log
  readonly openTransport: () => Transport
  readonly metrics: Metrics
}

/** Stale flows, removed beside the syncs: its failures never hold up what Services need. */
export class Flows {
  readonly #options: FlowsOptions
  readonly #client: ConntrackClient
  readonly #reconciler: FlowReconciler

  constructor(options: FlowsOptions) {
    const { clock, random, openTransport } = options
    this.#options = options
    this.#client = createConntrackClient({ openTransport, clock })
    this.#reconciler = new FlowReconciler({
      client: this.#client,
      clock,
      random,
      report: event => this.#report(event),
    })
  }

  offer(snapshot: Snapshot, table: FrontendTable): void {
    this.#reconciler.offer(snapshot, table)
  }

  async stop(): Promise<void> {
    await this.#reconciler.stop()
    await this.#client.close()
  }

  #report(event: FlowEvent): void {
    const { log, metrics } = this.#options
    if (event.kind === 'reconciled') {
      const { family, durationMs, deleted, cut, examined, reason } = event
      metrics.proxy.conntrackPass({ family, durationMs, deleted: deleted + cut })
      log.debug({ family, reason, examined, deleted, cut, durationMs }, 'stale flows were looked for')
      return
    }
    for (const family of FAMILIES) metrics.conntrackFailed(family)
    const facts = { err: event.error, retryMs: Math.round(event.retryMs) }
    log.warn(facts, 'stale flows could not be removed; Services are served, and it is tried again')
  }
}
