import { SYNC_SHARE, systemClock } from '../base/clock.ts'
import { createLog, type Log } from '../base/log.ts'
import { Intake } from '../daemon/intake.ts'
import { IntakeLog, logProblem } from '../daemon/intake-log.ts'
import { systemLock } from '../daemon/network-lock.ts'
import { OnceFailures } from '../daemon/once.ts'
import type { FrontendTable } from '../model/frontend.ts'
import type { ResolveOptions } from '../model/node-context.ts'
import { resolve } from '../model/resolve.ts'
import type { Dataplane, Plan } from '../reconcile/dataplane.ts'
import type { ReconcilerEvent } from '../reconcile/pass.ts'
import { Reconciler } from '../reconcile/reconciler.ts'
import type { Source } from '../source/source.ts'
import type { NodeOfProxy } from './sources.ts'

export interface RunDataplaneOptions<State, P extends Plan<State>> extends NodeOfProxy {
  readonly source: Source
  readonly plane: Dataplane<State, P>
  /** Further options of the resolution; see DEFAULT_RESOLVE_OPTIONS. */
  readonly resolving?: Partial<ResolveOptions>
  /** Aborting it ends the run. If unset, SIGINT and SIGTERM end it. */
  readonly signal?: AbortSignal
  /** The log; text lines on standard error by default. */
  readonly log?: Log
  /** Minimum time between two commits, milliseconds; 1000 by default. */
  readonly minIntervalMs?: number
  /** Maximum interval between full resyncs, milliseconds; 30,000 by default. */
  readonly resyncPeriodMs?: number
  /** Interval of the polls of the generation, milliseconds; 0 for never, 100 by default. */
  readonly driftPollMs?: number
  /** End after the first sync. Three passes that fail before it, or a lack of privilege, reject. */
  readonly once?: boolean
  /** Gets the events of the reconciler, besides the log. */
  readonly report?: (event: ReconcilerEvent) => void
}

/** Options of the unnamed proxy, with node ports at every address and every external IP allowed. */
export const DEFAULT_RESOLVE_OPTIONS: Omit<ResolveOptions, 'nodeName'> = {
  serviceProxyName: undefined,
  nodePortSelection: { primary: false, cidrs: [] },
  allowedExternalCidrs: [],
  allowedLoadBalancerCidrs: [],
  allowServiceExternalIps: true,
  bindAddress: undefined,
}

/**
 * Keeps a data plane in the state that a source wants: source, Snapshot, resolve, Reconciler. It commits nothing before
 * the source has delivered everything once, and repairs drift. The state stays in the kernel at the end. Resolves when
 * the run ends. Rejects if the source cannot start, or if another process of this network namespace runs a plane of the
 * same name.
 */
export async function runDataplane<State, P extends Plan<State>>(
  options: RunDataplaneOptions<State, P>,
): Promise<void> {
  const { plane, clock = systemClock } = options
  const takeLock = systemLock(clock, Math.random)
  const lock = await takeLock(`kprobe/plane/${plane.name}`, `pid ${process.pid}`)
  if (lock.kind === 'busy')
    throw new Error(`another process (${lock.holder || 'no answer'}) runs the plane ${plane.name}`)
  try {
    await new Run(options).untilEnd()
  } finally {
    await lock.release()
  }
}

class Run<State, P extends Plan<State>> {
  readonly #options: RunDataplaneOptions<State, P>
  readonly #log: Log
  readonly #reconciler: Reconciler<State, P>
  readonly #intake: Intake
  readonly #refusals: IntakeLog
  readonly #done: Promise<void>
  #end: (error?: Error) => void = () => undefined
  readonly #failures = new OnceFailures()

  constructor(options: RunDataplaneOptions<State, P>) {
    this.#options = options
    const { plane, nodeName, serviceProxyName, resolving, clock = systemClock } = options
    this.#log = options.log ?? createLog({ format: 'text', verbosity: 0 })
    this.#refusals = new IntakeLog(this.#log)
    this.#done = new Promise((fulfil, reject) => {
      this.#end = error => (error === undefined ? fulfil() : reject(error))
    })
    const point = {
      ...DEFAULT_RESOLVE_OPTIONS,
      serviceProxyName,
      ...resolving,
      nodeName: nodeName.toLowerCase(),
    }
    this.#reconciler = new Reconciler({
      plane,
      resolve: (previous, snapshot) => resolve(point, previous, snapshot),
      clock,
      random: Math.random,
      minIntervalMs: options.minIntervalMs ?? 1_000,
      share: SYNC_SHARE,
      resyncPeriodMs: options.resyncPeriodMs ?? 30_000,
      driftPollMs: options.driftPollMs ?? 100,
      report: event => this.#report(event),
    })
    this.#intake = new Intake({
      keepsNode: true,
      handlers: {
        refusals: list => this.#refusals.source(list),
        problem: problem => logProblem(this.#log, problem),
      },
    })
    this.#intake.deliverTo(this.#reconciler)
  }

  async untilEnd(): Promise<void> {
    const unlisten = this.#listen()
    try {
      await this.#intake.follow(this.#options.source)
      await this.#done
    } finally {
      unlisten()
      await this.#intake.stop()
      await this.#reconciler.stop()
    }
  }

  #listen(): () => void {
    const end = () => this.#end()
    const { signal } = this.#options
    if (signal !== undefined) {
      signal.addEventListener('abort', end, { once: true })
      if (signal.aborted) end()
      return () => signal.removeEventListener('abort', end)
    }
    for (const name of SIGNALS) process.on(name, end)
    return () => {
      for (const name of SIGNALS) process.off(name, end)
    }
  }

  #report(event: ReconcilerEvent): void {
    this.#options.report?.(event)
    const { table } = this.#reconciler.status
    switch (event.kind) {
      case 'synced':
        if (table !== undefined) this.#synced(event, table)
        break
      case 'failed':
        this.#failed(event)
        break
      case 'repaired':
        this.#log.warn(
          { changes: event.changes, objects: event.objects },
          'repaired changes of another program',
        )
        break
      case 'quarantined':
        this.#log.warn(
          { service: event.service, err: event.error, retryMs: event.retryMs },
          'the kernel rejects the Service; skipped and retried',
        )
        break
      case 'released':
        this.#log.info({ service: event.service }, 'the kernel accepts the Service again')
        break
      default:
        this.#log.debug(event, 'reconciling')
    }
  }

  #synced(
    { number, reason, durationMs }: Extract<ReconcilerEvent, { readonly kind: 'synced' }>,
    table: FrontendTable,
  ): void {
    this.#failures.succeeded()
    const facts = { number, reason, services: table.services.size, durationMs: Math.round(durationMs) }
    if (reason === 'start') this.#log.info(facts, 'sync complete')
    else this.#log.debug(facts, 'sync complete')
    this.#refusals.services(table)
    if (this.#options.once === true) this.#end()
  }

  #failed({ error, retryMs }: Extract<ReconcilerEvent, { readonly kind: 'failed' }>): void {
    this.#log.error({ err: error, retryMs }, 'sync failed; retrying')
    if (this.#failures.failed(error) && this.#options.once === true) this.#end(error)
  }
}

const SIGNALS = ['SIGINT', 'SIGTERM'] as const
