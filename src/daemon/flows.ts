import { type Clock, Pacer } from '../base/clock.ts'
import { FAMILIES } from '../base/ip.ts'
import type { Log } from '../base/log.ts'
import { type FlowEvent, FlowReconciler } from '../flows/flow-reconciler.ts'
import {
  type ConntrackClient,
  type ConntrackStatistics,
  createConntrackClient,
} from '../kernel/conntrack/client.ts'
import type { FrontendTable } from '../model/frontend.ts'
import type { Snapshot } from '../model/snapshot.ts'
import type { Transport } from '../netlink/transport.ts'
import type { Metrics } from '../telemetry/metrics.ts'
import type { DaemonIo } from './io.ts'

interface FlowsOptions {
  readonly clock: Clock
  readonly random: () => number
  readonly log: Log
  readonly openTransport: () => Transport
  readonly metrics: Metrics
  readonly share: () => number
  readonly full: (table: { readonly entries: number; readonly entriesMax: number }) => void
}

/** Makes the Flows of a daemon; undefined without a socket to conntrack. */
export function flowsOf(
  {
    clock,
    random,
    log,
    openConntrack: openTransport,
  }: Pick<DaemonIo, 'clock' | 'random' | 'log' | 'openConntrack'>,
  reports: Pick<FlowsOptions, 'metrics' | 'share' | 'full'>,
): Flows | undefined {
  return openTransport === undefined
    ? undefined
    : new Flows({ clock, random, log, openTransport, ...reports })
}

/** Usage from which the table counts as full, and below which it has room again. */
const FULL = 0.95
const ROOMY = 0.8

export class Flows {
  readonly #options: FlowsOptions
  readonly #client: ConntrackClient
  readonly #reconciler: FlowReconciler
  readonly #tableChecks: Pacer
  #isFull = false

  constructor(options: FlowsOptions) {
    const { clock, random, share, openTransport } = options
    this.#options = options
    this.#client = createConntrackClient({ openTransport, clock })
    this.#reconciler = new FlowReconciler({
      client: this.#client,
      clock,
      random,
      share,
      report: event => this.#report(event),
    })
    this.#tableChecks = new Pacer({ clock, run: () => this.#look() })
    this.#tableChecks.wake()
  }

  offer(snapshot: Snapshot, table: FrontendTable): void {
    this.#reconciler.offer(snapshot, table)
  }

  async stop(): Promise<void> {
    void this.#tableChecks.stop()
    await this.#reconciler.stop()
    await this.#client.close()
  }

  async #look(): Promise<number> {
    const { log } = this.#options
    try {
      this.#noteTable(await this.#client.statistics())
    } catch (err) {
      log.debug({ err }, 'cannot read conntrack usage')
    }
    // The usage is looked at every 30 s; the kernel logs a full table itself.
    return 30_000
  }

  #noteTable(table: ConntrackStatistics): void {
    const { metrics, full, log } = this.#options
    metrics.conntrackTable(table)
    const { entries, entriesMax } = table
    if (entriesMax === undefined) return
    if (this.#isFull && entries < entriesMax * ROOMY) this.#isFull = false
    if (this.#isFull || entries < entriesMax * FULL) return
    this.#isFull = true
    log.warn(
      { entries, entriesMax },
      'the conntrack table is almost full; the kernel will drop new connections; raise net.netfilter.nf_conntrack_max',
    )
    full({ entries, entriesMax })
  }

  #report(event: FlowEvent): void {
    const { log, metrics } = this.#options
    if (event.kind === 'reconciled') {
      const { family, durationMs, deleted, cut, halfOpen, examined, reason } = event
      const labels = { ip_family: family }
      metrics.kubeproxy_conntrack_reconciler_sync_duration_seconds.observe(labels, durationMs / 1000)
      metrics.kubeproxy_conntrack_reconciler_deleted_entries_total.inc(labels, deleted + cut + halfOpen)
      log.debug(
        { family, reason, examined, deleted, cut, halfOpen, durationMs: Math.round(durationMs) },
        'deleted stale conntrack entries',
      )
      return
    }
    for (const ip_family of FAMILIES) metrics.kprobe_conntrack_failures_total.inc({ ip_family })
    const facts = { err: event.error, retryMs: Math.round(event.retryMs) }
    log.warn(facts, 'cannot delete stale conntrack entries; retrying; Services are served')
  }
}
