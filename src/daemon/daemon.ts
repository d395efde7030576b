import type { Clock } from '../base/clock.ts'
import type { takeLock } from '../base/instance-lock.ts'
import type { Log } from '../base/log.ts'
import { privilegeHint } from '../base/privilege.ts'
import { finishInSlices } from '../base/steps.ts'
import { within } from '../base/within.ts'
import type { Config } from '../config/config.ts'
import { resolveOptions } from '../config/resolve-options.ts'
import { dryRun } from '../dataplane/dry-run.ts'
import type { NftablesPlan } from '../dataplane/nftables/plan.ts'
import type { NftablesState } from '../dataplane/nftables/state.ts'
import type { FrontendTable } from '../model/frontend.ts'
import { resolve } from '../model/resolve.ts'
import {
  applyEvents,
  applyEventsInSteps,
  EMPTY_SNAPSHOT,
  type Snapshot,
  type SourceEvent,
} from '../model/snapshot.ts'
import type { Transport } from '../netlink/transport.ts'
import type { Plan } from '../reconcile/dataplane.ts'
import type { PassReason, ReconcilerEvent } from '../reconcile/events.ts'
import { Reconciler } from '../reconcile/reconciler.ts'
import type { LocalAddresses } from '../source/local-addresses.ts'
import type { SourceHandlers, SourceProblem } from '../source/source.ts'
import { createMetrics, type Metrics } from '../telemetry/metrics.ts'
import { RefusalLog } from '../telemetry/refusal-log.ts'
import { lockName, nftablesOptions, type OpenPlane, openPlane, openSource, watchLocalIps } from './open.ts'

/** What the daemon needs from whoever starts it, and tells them. */
export interface DaemonIo {
  readonly log: Log
  readonly clock: Clock
  /** Uniform in [0, 1). */
  readonly random: () => number
  /** Aborted when the process shall end. */
  readonly signal: AbortSignal
  readonly processId: number
  /** Opens a socket to nf_tables: openNetfilter, or one to a kernel in memory. */
  readonly openTransport: () => Transport
  /** The same for the addresses of interfaces. */
  readonly openRoute?: () => Transport
  readonly takeLock: typeof takeLock
  /** The kernel holds what the sources ask for. */
  readonly synced: (sync: Sync) => void
  /** A plan that --backend=dry-run does not commit. */
  readonly planned: (plan: Plan<unknown>) => void
}

export interface Sync {
  readonly reason: PassReason
  readonly snapshot: Snapshot
  readonly table: FrontendTable
  /** Of the sync before; undefined at the first. */
  readonly previous: FrontendTable | undefined
  /** Commits since the sync before, together. */
  readonly written: Written
}

export interface Written {
  readonly commits: number
  readonly changes: number
  readonly bytes: number
  readonly durationMs: number
}

const NOTHING_WRITTEN: Written = { commits: 0, changes: 0, bytes: 0, durationMs: 0 }
/** Distance between looks at the kernel's generation, 0.8 us each: damage is noticed in half of the 250 ms allowed. */
const DRIFT_POLL_MS = 100
const SLICE_MS = 8
/** How long an unfinished pass may hold up the end of the process. */
const DRAIN_MS = 3_000
/** With --once: passes that may fail before the process does. */
const ONCE_FAILURES_MAX = 3

/** Runs until told to stop, or until the first sync with --once. Gives the exit code. */
export async function runDaemon(config: Config, io: DaemonIo): Promise<number> {
  if (config.backend === 'dry-run') return await new Daemon(config, io).run()
  const lock = await io.takeLock(lockName(nftablesOptions(config)), `pid ${io.processId}`)
  if (lock.kind === 'busy') {
    const holder = lock.holder === '' ? 'which does not answer' : lock.holder
    io.log.error(
      { holder },
      'another kprobe runs in this network namespace; two would fight over the same tables',
    )
    return 1
  }
  try {
    return await new Daemon(config, io).run()
  } finally {
    await lock.release()
  }
}

class Daemon {
  readonly #config: Config
  readonly #io: DaemonIo
  readonly #metrics: Metrics = createMetrics()
  readonly #refusals = new RefusalLog()
  readonly #done: Promise<number>
  #finish: (code: number) => void = () => undefined
  #snapshot = EMPTY_SNAPSHOT
  #reconciler: Reconciler<NftablesState, NftablesPlan> | undefined
  /** The source has told everything once. */
  #complete = false
  /** Without this machine's addresses NodePorts would be closed that the kernel serves already. */
  #ipsMissing = false
  #previous: FrontendTable | undefined
  #written = NOTHING_WRITTEN
  #failures = 0
  /** What did not fit into the kernel's tables, as a text to notice changes by. */
  #misfits = ''

  constructor(config: Config, io: DaemonIo) {
    this.#config = config
    this.#io = io
    this.#done = new Promise(resolve => {
      this.#finish = resolve
    })
  }

  async run(): Promise<number> {
    const { clock, log, signal } = this.#io
    const opened = this.#open()
    if (opened === undefined) return 1
    const reconciler = this.#reconcile(opened.plane)
    this.#reconciler = reconciler
    const localIps = this.#watchIps()
    const source = openSource(this.#config, clock)
    const aborted = () => this.#finish(this.#config.once ? 1 : 0)
    signal.addEventListener('abort', aborted, { once: true })
    if (signal.aborted) aborted()
    await source.start(this.#handlers())
    const code = await this.#done
    signal.removeEventListener('abort', aborted)
    await localIps?.stop()
    await source.stop()
    const drained = await within(clock, DRAIN_MS, reconciler.stop())
    if (!drained) log.warn('a commit is still under way; the kernel takes all of it or nothing')
    await within(clock, DRAIN_MS / 4, opened.close())
    log.trace({ metrics: await this.#metrics.text() }, 'ended')
    return code
  }

  #watchIps(): LocalAddresses | undefined {
    const { clock, log, openRoute } = this.#io
    const watch = watchLocalIps(this.#config, clock, {
      ...(openRoute === undefined ? {} : { openTransport: openRoute }),
      changed: value => {
        this.#ipsMissing = false
        this.#take(applyEvents(this.#snapshot, [{ kind: 'LocalIps', value }]))
      },
      failed: err => {
        const rest = this.#ipsMissing ? 'nothing is programmed before they are known' : 'the last list stays'
        log.warn({ err }, `the addresses of this machine cannot be read; ${rest}`)
        this.#metrics.sourceProblem()
        if (this.#config.once) this.#finish(1)
      },
      recovered: () => log.info('the addresses of this machine are read again'),
    })
    this.#ipsMissing = watch !== undefined
    return watch
  }

  #open(): OpenPlane | undefined {
    const { clock, log, planned, openTransport } = this.#io
    try {
      const opened = openPlane(this.#config, clock, openTransport)
      if (this.#config.backend === 'netlink') return opened
      const unreadable = (err: Error) =>
        log.warn({ err }, 'the kernel cannot be read: the plan starts from an empty one')
      return { ...opened, plane: dryRun(opened.plane, { planned, unreadable }) }
    } catch (err) {
      log.fatal({ err }, 'cannot speak with the kernel')
      return undefined
    }
  }

  #reconcile(plane: OpenPlane['plane']): Reconciler<NftablesState, NftablesPlan> {
    const { clock, random } = this.#io
    const options = resolveOptions(this.#config)
    return new Reconciler({
      plane: this.#noticing(plane),
      resolve: (previous, snapshot) => resolve(options, previous, snapshot),
      clock,
      random,
      minIntervalMs: this.#config.minSyncPeriodMs,
      healPeriodMs: this.#config.syncPeriodMs,
      driftPollMs: this.#config.backend === 'netlink' ? DRIFT_POLL_MS : 0,
      report: event => this.#report(event),
    })
  }

  /** Refusals of the plane itself (what did not fit) stand in the states that it commits. */
  #noticing(plane: OpenPlane['plane']): OpenPlane['plane'] {
    return {
      ...plane,
      commit: async (plan, options) => {
        const receipt = await plane.commit(plan, options)
        if (receipt.outcome === 'committed') this.#noticeMisfits(plan.after)
        return receipt
      },
    }
  }

  #noticeMisfits({ refusals }: NftablesState): void {
    const list = [...refusals.values()].flat()
    const said = JSON.stringify(list)
    if (said === this.#misfits || (this.#misfits === '' && list.length === 0)) return
    this.#misfits = list.length === 0 ? '' : said
    for (const refusal of list) this.#io.log.warn(refusal, 'refused: it does not fit')
  }

  #handlers(): SourceHandlers {
    const { log } = this.#io
    return {
      events: batch => this.#takeInSlices(batch),
      synced: () => {
        this.#complete = true
        this.#offer()
      },
      refusals: list => {
        for (const { place, refusal } of list) log.warn({ place, ...refusal }, 'refused')
      },
      problem: problem => this.#problem(problem),
    }
  }

  async #takeInSlices(batch: readonly SourceEvent[]): Promise<void> {
    const { clock } = this.#io
    const slicing = { sliceMs: SLICE_MS, nowMs: () => clock.nowMs(), breathe: () => clock.breathe() }
    const before = this.#snapshot
    const after = await finishInSlices(applyEventsInSteps(before, batch), slicing)
    // Addresses of this machine may have changed meanwhile: they are not of this batch, and cost nothing to do again.
    const { localIps } = this.#snapshot
    const same = localIps === before.localIps
    this.#take(same ? after : applyEvents(after, [{ kind: 'LocalIps', value: localIps }]))
  }

  #take(snapshot: Snapshot): void {
    this.#snapshot = snapshot
    this.#offer()
  }

  /** Before the source is complete, what is missing may only not have been read yet: nothing is removed for that. */
  #offer(): void {
    if (this.#complete && !this.#ipsMissing) this.#reconciler?.offer(this.#snapshot)
  }

  #problem({ kind, place, text }: SourceProblem): void {
    const { log } = this.#io
    if (kind === 'recovered') log.info({ place }, text)
    else log.warn({ place }, text)
    if (kind !== 'failed') return
    this.#metrics.sourceProblem()
    if (this.#config.once && !this.#complete) this.#finish(1)
  }

  #report(event: ReconcilerEvent): void {
    const { log } = this.#io
    switch (event.kind) {
      case 'committed':
        this.#committed(event)
        break
      case 'synced':
        this.#synced(event.reason)
        break
      case 'healed':
        this.#metrics.healed(event.changes)
        log.warn({ changes: event.changes, objects: event.objects }, 'damage to our tables was repaired')
        break
      case 'foreign-commit':
        this.#metrics.foreignCommit()
        if (event.damage) log.warn({ process: event.process }, 'somebody else changes our tables')
        else log.debug({ generation: event.generation }, 'somebody else changed nf_tables')
        break
      case 'stale':
        this.#metrics.staleCommit()
        log.debug({ attempt: event.attempt }, 'somebody else committed first; planning again')
        break
      case 'quarantined':
        this.#quarantined(event)
        break
      case 'released':
        this.#countQuarantine()
        log.info({ service: event.service }, 'the kernel takes a Service that it had refused')
        break
      case 'failed':
        this.#failed(event.error, event.retryMs)
        break
    }
  }

  #committed({ plan, receipt, reason }: Extract<ReconcilerEvent, { readonly kind: 'committed' }>): void {
    const { changes } = plan
    const { bytes, durationMs } = receipt
    this.#metrics.commit({ bytes, durationMs, changes })
    this.#written = add(this.#written, { commits: 1, changes, bytes, durationMs })
    this.#io.log.debug({ reason, changes, bytes, durationMs }, 'committed')
  }

  #quarantined({
    service,
    error,
    retryMs,
  }: Extract<ReconcilerEvent, { readonly kind: 'quarantined' }>): void {
    this.#countQuarantine()
    const facts = { service, err: error, retryMs: Math.round(retryMs) }
    this.#io.log.error(facts, 'the kernel refuses a Service; all others are served')
  }

  #failed(err: Error, retryMs: number): void {
    this.#metrics.failedPass()
    const hint = privilegeHint(err)
    const facts = { err, retryMs: Math.round(retryMs), ...(hint === undefined ? {} : { hint }) }
    this.#io.log.error(facts, 'the kernel could not be brought up to date; trying again')
    this.#failures++
    // A privilege does not come by waiting.
    if (this.#config.once && (hint !== undefined || this.#failures >= ONCE_FAILURES_MAX)) this.#finish(1)
  }

  #countQuarantine(): void {
    this.#metrics.quarantined(this.#reconciler?.status.quarantined.length ?? 0)
  }

  #synced(reason: PassReason): void {
    const status = this.#reconciler?.status
    const table = status?.table
    if (table === undefined || status === undefined) return
    const news = this.#refusals.look(table)
    this.#metrics.refusals(news.total)
    for (const refusal of news.fresh) this.#io.log.warn(refusal, 'refused')
    if (news.unnamed > 0)
      this.#io.log.warn({ more: news.unnamed }, 'further refusals; `kprobe plan` lists them')
    const { previous, written, snapshot } = {
      previous: this.#previous,
      written: this.#written,
      snapshot: this.#snapshot,
    }
    this.#previous = table
    this.#written = NOTHING_WRITTEN
    this.#failures = 0
    this.#io.synced({ reason, snapshot, table, previous, written })
    if (!this.#config.once || table.number !== snapshot.number) return
    this.#finish(status.quarantined.length > 0 || this.#misfits !== '' ? 1 : 0)
  }
}

function add(a: Written, b: Written): Written {
  return {
    commits: a.commits + b.commits,
    changes: a.changes + b.changes,
    bytes: a.bytes + b.bytes,
    durationMs: a.durationMs + b.durationMs,
  }
}
