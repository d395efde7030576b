import type { Clock } from '../base/clock.ts'
import type { Log } from '../base/log.ts'
import { finishInSlices, slicingOf } from '../base/steps.ts'
import { within } from '../base/within.ts'
import type { Config } from '../config/config.ts'
import { resolveOptions } from '../config/resolve-options.ts'
import { dryRun } from '../dataplane/dry-run.ts'
import { type ConnectionCount, readConnections } from '../dataplane/nftables/connections.ts'
import type { NftablesPlan } from '../dataplane/nftables/plan.ts'
import type { NftablesState } from '../dataplane/nftables/state.ts'
import type { Refusal } from '../model/refusal.ts'
import { resolve } from '../model/resolve.ts'
import type { Snapshot } from '../model/snapshot.ts'
import type { Transport } from '../netlink/transport.ts'
import type { Plan } from '../reconcile/dataplane.ts'
import { type Difference, differenceOf } from '../reconcile/difference.ts'
import type { ReconcilerEvent } from '../reconcile/events.ts'
import { Reconciler, type ReconcilerStatus } from '../reconcile/reconciler.ts'
import { type OpenPlane, openPlane } from './open.ts'

export interface ProgrammingOptions {
  readonly clock: Clock
  readonly log: Log
  /** Uniform in [0, 1). */
  readonly random: () => number
  readonly openTransport: () => Transport
  readonly report: (event: ReconcilerEvent) => void
  /** A plan that --backend=dry-run does not commit. */
  readonly planned: (plan: Plan<unknown>) => void
  /** What the kernel's tables have no room for, all of it, whenever it has changed. */
  readonly misfits: (refusals: readonly Refusal[]) => void
}

/** Distance between looks at the kernel's generation, 0.8 us each: damage is noticed in half of the 250 ms allowed. */
const DRIFT_POLL_MS = 100
/** How long an unfinished pass may hold up the end. */
const DRAIN_MS = 3_000

/**
 * One plane and its reconciler, for as long as the configuration asks for the same. Another may follow it: it adopts
 * what this one left in the kernel.
 */
export class Programming {
  readonly #options: ProgrammingOptions
  readonly #opened: OpenPlane
  readonly #reconciler: Reconciler<NftablesState, NftablesPlan>
  #misfits = ''

  /** Throws when the kernel cannot be spoken to. */
  constructor(config: Config, options: ProgrammingOptions) {
    const { clock, random, report } = options
    this.#options = options
    this.#opened = this.#open(config)
    const resolving = resolveOptions(config)
    this.#reconciler = new Reconciler({
      plane: this.#noticing(this.#opened.plane),
      resolve: (previous, snapshot) => resolve(resolving, previous, snapshot),
      clock,
      random,
      minIntervalMs: config.minSyncPeriodMs,
      healPeriodMs: config.syncPeriodMs,
      driftPollMs: config.backend === 'netlink' ? DRIFT_POLL_MS : 0,
      report,
    })
  }

  get status(): ReconcilerStatus {
    return this.#reconciler.status
  }

  /** Something does not fit into the kernel's tables. */
  get hasMisfits(): boolean {
    return this.#misfits !== ''
  }

  /** New connections at each endpoint, where the configuration asks the kernel to count them. */
  async connections(): Promise<readonly ConnectionCount[]> {
    const { rendered } = this.#reconciler
    if (rendered === undefined) return []
    const slicing = slicingOf(this.#options.clock)
    return await readConnections(this.#opened.client, rendered, steps => finishInSlices(steps, slicing))
  }

  /** What the kernel, as it is now, lacks of what was asked for last. */
  async pending(): Promise<Difference | undefined> {
    const { table } = this.#reconciler.status
    if (table === undefined) return undefined
    return await differenceOf(this.#opened.plane, table, slicingOf(this.#options.clock))
  }

  offer(snapshot: Snapshot): void {
    this.#reconciler.offer(snapshot)
  }

  /** The kernel keeps what it holds. */
  async stop(): Promise<void> {
    const { clock, log } = this.#options
    const drained = await within(clock, DRAIN_MS, this.#reconciler.stop())
    if (!drained) log.warn('a commit is still under way; the kernel takes all of it or nothing')
    await within(clock, DRAIN_MS / 4, this.#opened.close())
  }

  #open(config: Config): OpenPlane {
    const { clock, log, openTransport, planned } = this.#options
    const opened = openPlane(config, clock, openTransport)
    if (config.backend === 'netlink') return opened
    const unreadable = (err: Error) =>
      log.warn({ err }, 'the kernel cannot be read: the plan starts from an empty one')
    return { ...opened, plane: dryRun(opened.plane, { planned, unreadable }) }
  }

  /** Refusals of the plane itself (what did not fit) stand in the states that it commits. */
  #noticing(plane: OpenPlane['plane']): OpenPlane['plane'] {
    return {
      ...plane,
      commit: async (plan, options) => {
        const receipt = await plane.commit(plan, options)
        if (receipt.outcome === 'committed') this.#notice(plan.after)
        return receipt
      },
    }
  }

  #notice({ refusals }: NftablesState): void {
    const list = [...refusals.values()].flat()
    const said = list.length === 0 ? '' : JSON.stringify(list)
    if (said === this.#misfits) return
    this.#misfits = said
    this.#options.misfits(list)
  }
}
