import type { Clock } from '../base/clock.ts'
import type { takeLock } from '../base/instance-lock.ts'
import type { Log } from '../base/log.ts'
import { privilegeHint } from '../base/privilege.ts'
import type { Config } from '../config/config.ts'
import type { FrontendTable } from '../model/frontend.ts'
import type { Snapshot } from '../model/snapshot.ts'
import type { Transport } from '../netlink/transport.ts'
import type { Plan } from '../reconcile/dataplane.ts'
import type { PassReason, ReconcilerEvent } from '../reconcile/events.ts'
import type { LocalAddresses } from '../source/local-addresses.ts'
import type { SourceProblem } from '../source/source.ts'
import { createMetrics, type Metrics } from '../telemetry/metrics.ts'
import { RefusalLog } from '../telemetry/refusal-log.ts'
import { Intake } from './intake.ts'
import { lockName, nftablesOptions, openSource, watchLocalIps } from './open.ts'
import { Programming } from './programming.ts'

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
  readonly #intake: Intake
  readonly #done: Promise<number>
  #finish: (code: number) => void = () => undefined
  #programming: Programming | undefined
  #localIps: LocalAddresses | undefined
  #previous: FrontendTable | undefined
  #written = NOTHING_WRITTEN
  #failures = 0

  constructor(config: Config, io: DaemonIo) {
    this.#config = config
    this.#io = io
    this.#done = new Promise(resolve => {
      this.#finish = resolve
    })
    this.#intake = new Intake({
      clock: io.clock,
      changed: snapshot => this.#programming?.offer(snapshot),
      handlers: {
        refusals: list => {
          for (const { place, refusal } of list) io.log.warn({ place, ...refusal }, 'refused')
        },
        problem: problem => this.#problem(problem),
      },
    })
  }

  async run(): Promise<number> {
    const { clock, log, signal } = this.#io
    try {
      this.#programming = this.#program()
    } catch (err) {
      log.fatal({ err }, 'cannot speak with the kernel')
      return 1
    }
    const aborted = () => this.#finish(this.#config.once ? 1 : 0)
    signal.addEventListener('abort', aborted, { once: true })
    if (signal.aborted) aborted()
    this.#localIps = this.#watchIps()
    await this.#intake.follow(openSource(this.#config, clock))
    const code = await this.#done
    signal.removeEventListener('abort', aborted)
    await this.#localIps?.stop()
    await this.#intake.stop()
    await this.#programming.stop()
    log.trace({ metrics: await this.#metrics.text() }, 'ended')
    return code
  }

  #program(): Programming {
    const { clock, log, random, openTransport, planned } = this.#io
    return new Programming(this.#config, {
      clock,
      log,
      random,
      openTransport,
      planned,
      report: event => this.#report(event),
      misfits: list => {
        for (const refusal of list) log.warn(refusal, 'refused: it does not fit')
      },
    })
  }

  #watchIps(): LocalAddresses | undefined {
    const { clock, log, openRoute } = this.#io
    const watch = watchLocalIps(this.#config, clock, {
      ...(openRoute === undefined ? {} : { openTransport: openRoute }),
      changed: value => this.#intake.takeIps(value),
      failed: err => {
        const isKnown = this.#intake.snapshot.localIps.length > 0
        const rest = isKnown ? 'the last list stays' : 'nothing is programmed before they are known'
        log.warn({ err }, `the addresses of this machine cannot be read; ${rest}`)
        this.#metrics.sourceProblem()
        if (this.#config.once) this.#finish(1)
      },
      recovered: () => log.info('the addresses of this machine are read again'),
    })
    if (watch !== undefined) this.#intake.awaitIps()
    return watch
  }

  #problem({ kind, place, text }: SourceProblem): void {
    const { log } = this.#io
    if (kind === 'recovered') log.info({ place }, text)
    else log.warn({ place }, text)
    if (kind !== 'failed') return
    this.#metrics.sourceProblem()
    if (this.#config.once && !this.#intake.complete) this.#finish(1)
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
    this.#metrics.quarantined(this.#programming?.status.quarantined.length ?? 0)
  }

  #synced(reason: PassReason): void {
    const status = this.#programming?.status
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
      snapshot: this.#intake.snapshot,
    }
    this.#previous = table
    this.#written = NOTHING_WRITTEN
    this.#failures = 0
    this.#io.synced({ reason, snapshot, table, previous, written })
    if (!this.#config.once || table.number !== snapshot.number) return
    this.#finish(status.quarantined.length > 0 || this.#programming?.hasMisfits === true ? 1 : 0)
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
