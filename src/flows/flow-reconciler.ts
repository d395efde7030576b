import {
  type BackoffOptions,
  type Clock,
  finishInSlices,
  Pacer,
  pause,
  restMs,
  type Slicing,
  SYNC_REST_MS_MAX,
  slicingOf,
  stepsOver,
} from '../base/clock.ts'
import { PersistentMap } from '../base/collections.ts'
import { errorOf } from '../base/errors.ts'
import type { Octets } from '../base/octets.ts'
import type { ConntrackClient } from '../kernel/conntrack/client.ts'
import type { Flow } from '../kernel/conntrack/flow.ts'
import type { FrontendTable } from '../model/frontend.ts'
import type { ServiceKey } from '../model/service.ts'
import type { Snapshot } from '../model/snapshot.ts'
import { Drains, type FamilyResult, FlowPass, Stopped } from './pass.ts'
import {
  type FlowCheck,
  familiesOf,
  flowPorts,
  hasOtherTcpEndpoints,
  isAimedAt,
  isLagging,
  isWatched,
  type Looks,
  lookAt,
  lookAtHalfOpen,
  looksAt,
  type Pending,
  remember,
  type Version,
  type View,
  versionOf,
} from './ports.ts'

interface FlowReconcilerOptions {
  readonly client: ConntrackClient
  readonly clock: Clock
  readonly random: () => number
  readonly report: (event: FlowEvent) => void
  readonly share: () => number
}

/** Packets that met the rules from before a commit have been confirmed by then. */
const SETTLE_MS = 10
/** Interval between checks of the flows of all Services. */
const PERIOD_MS = 600_000
const RETRY: Omit<BackoffOptions, 'random'> = { minMs: 500, maxMs: 60_000 }

/**
 * Removes flows from connection tracking that no rule would make any more: datagrams would continue to an endpoint that is
 * gone for as long as the sender keeps sending, and the SYNs of a client for as long as it tries. It runs beside the
 * syncs and never delays them. What it checks follows from what changed; what it deletes follows from what is, so that
 * a restart or a lost event deletes nothing that is right, and misses no flow of UDP or SCTP that is wrong.
 */
export class FlowReconciler {
  readonly #options: FlowReconcilerOptions
  readonly #slicing: Slicing
  readonly #drains = new Drains()
  readonly #pass: FlowPass
  readonly #halfOpen: HalfOpenChecks
  readonly #pacer: Pacer
  #view: View | undefined
  /** The versions of each Service since the last complete pass. */
  #pending: Pending = new Map()
  #isAllPending = true
  /** Undefined when only time brings the next pass. */
  #reason: FlowReason | undefined
  #periodAtMs = 0

  constructor(options: FlowReconcilerOptions) {
    this.#options = options
    const { client, clock, random } = options
    this.#slicing = slicingOf(clock)
    this.#pacer = new Pacer({ clock, run: () => this.#passOnce() })
    this.#pass = new FlowPass({
      client,
      clock,
      random,
      drains: this.#drains,
      slicing: this.#slicing,
      isStopped: () => this.#pacer.isStopped,
    })
    this.#halfOpen = new HalfOpenChecks({
      clock,
      pass: this.#pass,
      report: result => options.report({ kind: 'reconciled', reason: 'removal', ...result }),
      failed: (thrown, pacer) => this.#fail(thrown, pacer),
    })
  }

  /** Takes the state that the kernel has after a sync; call it after each. Cost follows the change since the last call. */
  offer(snapshot: Snapshot, table: FrontendTable): void {
    const before = this.#view
    const view = { snapshot, table }
    this.#view = view
    if (before === undefined) this.#wake('start')
    else if (this.#note(before, view)) this.#wake('change')
    this.#halfOpen.offer(view)
  }

  async stop(): Promise<void> {
    await Promise.all([this.#pacer.stop(), this.#halfOpen.stop()])
  }

  /** Remembers what changed; false when flows do not depend on it. */
  #note(before: View, after: View): boolean {
    const keys = new Set([
      ...PersistentMap.changes(before.snapshot.services, after.snapshot.services),
      ...PersistentMap.changes(before.snapshot.slices, after.snapshot.slices),
      ...PersistentMap.changes(before.table.services, after.table.services),
    ])
    let isNews = isElsewhere(before, after)
    if (isNews) this.#isAllPending = true
    for (const key of keys) {
      const was = versionOf(before, key)
      const is = versionOf(after, key)
      this.#halfOpen.note(key, was, is)
      if (!isWatched(was) && !isWatched(is)) continue
      isNews = true
      this.#remember(key, [was])
    }
    return isNews
  }

  #remember(key: ServiceKey, versions: readonly Version[]): void {
    if (!remember(this.#pending, key, versions)) this.#isAllPending = true
  }

  #wake(reason: FlowReason): void {
    this.#reason ??= reason
    this.#pacer.rest(SETTLE_MS)
    this.#pacer.wake()
  }

  /** Gives the time to the next pass: for connections to cut, or the period. */
  async #passOnce(): Promise<number | undefined> {
    const { clock, share } = this.#options
    const view = this.#view
    if (view === undefined) return undefined
    const isPeriod = clock.nowMs() >= this.#periodAtMs
    const reason = this.#reason ?? (isPeriod ? 'period' : 'drain')
    const [pending, isAll] = [this.#pending, this.#isAllPending || isPeriod]
    this.#pending = new Map()
    this.#isAllPending = false
    this.#reason = undefined
    const beganCpuMs = clock.cpuMs()
    try {
      await this.#look(view, { pending, isAll, reason })
      if (isAll) this.#periodAtMs = clock.nowMs() + PERIOD_MS
      this.#pacer.succeeded()
      this.#pacer.rest(restMs(clock.cpuMs() - beganCpuMs, { share: share(), maxMs: SYNC_REST_MS_MAX }))
      // The kernel lags behind this Snapshot and may make flows that were judged as if it did not: the next sync decides.
      if (isLagging(view)) this.#restore(pending, isAll)
    } catch (thrown) {
      this.#restore(pending, isAll)
      if (!(thrown instanceof Stopped)) {
        this.#reason = 'retry'
        this.#fail(thrown, this.#pacer)
      }
    }
    return Math.min(this.#periodAtMs, this.#drains.nextDueMs ?? Number.POSITIVE_INFINITY) - clock.nowMs()
  }

  async #look(
    view: View,
    {
      pending,
      isAll,
      reason,
    }: { readonly pending: Pending; readonly isAll: boolean; readonly reason: FlowReason },
  ): Promise<void> {
    const due = this.#drains.servicesDue(this.#options.clock.nowMs())
    const steps = isAll ? looksAtAll(view, pending) : looksAt(view, pending, { look: lookAt, due })
    const looks = await finishInSlices(steps, this.#slicing)
    if (looks.size === 0) return
    for (const result of await this.#pass.run({ looks, view, phase: 'under way' }))
      this.#options.report({ kind: 'reconciled', reason, ...result })
  }

  #restore(pending: Pending, isAll: boolean): void {
    const later = this.#pending
    this.#pending = pending
    this.#isAllPending ||= isAll
    for (const [key, versions] of later) this.#remember(key, versions)
  }

  #fail(thrown: unknown, pacer: Pacer): void {
    const { random, report } = this.#options
    report({ kind: 'failed', error: errorOf(thrown), retryMs: pacer.failed({ ...RETRY, random }) })
  }
}

/** NodePorts answer at other addresses than before. */
function isElsewhere(before: View, after: View): boolean {
  return (
    before.table.nodePorts !== after.table.nodePorts ||
    before.table.node !== after.table.node ||
    before.snapshot.localIps !== after.snapshot.localIps
  )
}

/** The checks of all watched Services, and of those that a pass has to check again. */
function looksAtAll(view: View, pending: Pending) {
  const looks: Looks = new Map()
  return stepsOver(new Set([...view.table.services.keys(), ...pending.keys()]), {
    each(key) {
      const now = versionOf(view, key)
      const versions = pending.get(key) ?? []
      if (versions.length === 0 && !isWatched(now)) return
      const former = versions.flatMap(version => flowPorts(version))
      looks.set(key, { current: flowPorts(now), former })
    },
    result: () => looks,
  })
}

/** The reason of a check; `drain`: connections were due to be cut; `removal`: a TCP endpoint has gone. */
type FlowReason = 'start' | 'change' | 'period' | 'retry' | 'drain' | 'removal'

export type FlowEvent =
  /** One family was checked; families that needed no check report nothing. */
  | ({ readonly kind: 'reconciled'; readonly reason: FlowReason } & FamilyResult)
  /** A pass did not get through and is tried again; what it has removed is removed. */
  | { readonly kind: 'failed'; readonly error: Error; readonly retryMs: number }

interface HalfOpenOptions {
  readonly clock: Clock
  readonly pass: FlowPass
  readonly report: (result: FamilyResult) => void
  /** Called with what a pass threw; has the pacer try again. */
  readonly failed: (thrown: unknown, pacer: Pacer) => void
}

/** Most living endpoints have answered by then the SYNs of before the commit. */
const ATTEMPTS_SETTLE_MS = 200
/** An endpoint that lives answers within it: the first retransmission timeout of TCP (RFC 6298, section 2.1). */
const ANSWER_MS = 1_000
/** Maximum number of attempts that one pass waits for, some 10 MB; the next pass takes the others. */
const WAITING_MAX = 65_536
/** A client gives up after it (tcp_syn_retries = 6): versions from before a longer failure are not kept. */
const TRIES_MS = 127_000
/** From so many Services on, the attempts are listed first. */
const MANY_SERVICES = 16
const ATTEMPTS_PACE = { share: 0.01, minMs: 5_000 } as const

/**
 * Removes connection attempts that go to a TCP endpoint that is gone, so that the client's next SYN is balanced anew.
 * An attempt is deleted when two reads, ANSWER_MS apart, show the same entry without an answer: the kernel cannot compare
 * the status within a deletion, and an answer between read and deletion would cost a connection. What it has not seen,
 * such as removals before it began, times out in the kernel (nf_conntrack_tcp_timeout_syn_sent).
 */
class HalfOpenChecks {
  readonly #options: HalfOpenOptions
  readonly #pacer: Pacer
  readonly #stopping = new AbortController()
  #view: View | undefined
  #pending: Pending = new Map()
  #failingSinceMs: number | undefined

  constructor(options: HalfOpenOptions) {
    this.#options = options
    this.#pacer = new Pacer({ clock: options.clock, run: () => this.#passOnce() })
  }

  /** Remembers what a Service was before it changed. */
  note(key: ServiceKey, was: Version, is: Version): void {
    if (hasOtherTcpEndpoints(was, is)) remember(this.#pending, key, [was])
  }

  /** Takes the state that the kernel has after a sync, once all changes are noted. */
  offer(view: View): void {
    this.#view = view
    if (this.#pending.size > 0) this.#pacer.wake()
  }

  async stop(): Promise<void> {
    this.#stopping.abort()
    await this.#pacer.stop()
  }

  async #passOnce(): Promise<undefined> {
    const { clock, failed } = this.#options
    const pending = this.#pending
    this.#pending = new Map()
    await pause(clock, ATTEMPTS_SETTLE_MS, this.#stopping.signal)
    if (this.#pacer.isStopped) return
    try {
      const { busyMs, isWhole } = await this.#remove(pending)
      if (busyMs !== undefined) this.#pacer.rest(restMs(busyMs, ATTEMPTS_PACE))
      this.#pacer.succeeded()
      this.#failingSinceMs = undefined
      if (isWhole) return
      this.#restore(pending)
      // Where the rules still lag behind, the next sync does it.
      if (this.#view !== undefined && !isLagging(this.#view)) this.#pacer.wake()
    } catch (thrown) {
      this.#failingSinceMs ??= clock.nowMs()
      if (clock.nowMs() - this.#failingSinceMs < TRIES_MS) this.#restore(pending)
      if (!(thrown instanceof Stopped)) failed(thrown, this.#pacer)
    }
  }

  async #remove(all: Pending): Promise<Removal> {
    const { pending, busyMs } = await this.#attempted(all)
    const removal = await this.#removeFrom(pending)
    return busyMs === undefined ? removal : { ...removal, busyMs: busyMs + (removal.busyMs ?? 0) }
  }

  /** Of many Services, gives those to which an attempt goes: to list attempts costs less than to check each Service. */
  async #attempted(pending: Pending): Promise<{ readonly pending: Pending; readonly busyMs?: number }> {
    const { clock, pass } = this.#options
    const view = this.#view
    if (pending.size < MANY_SERVICES || view === undefined) return { pending }
    // Only whether any Service has lost an endpoint counts here: after the first loss, no further Service is compared.
    let loss: FlowCheck | undefined
    const look = (former: readonly Version[], now: Version) => {
      loss ??= lookAtHalfOpen(former, now)
      return loss
    }
    await finishInSlices(looksAt(view, pending, { look }), slicingOf(clock))
    if (loss === undefined) return { pending: new Map() }
    const startMs = clock.nowMs()
    const attempts = await pass.attempts(familiesOf(pending))
    const busyMs = clock.nowMs() - startMs
    if (attempts === undefined) return { pending, busyMs }
    const aimedAt = [...pending].filter(([, former]) => former.some(version => isAimedAt(version, attempts)))
    return { pending: new Map(aimedAt), busyMs }
  }

  async #removeFrom(pending: Pending): Promise<Removal> {
    const waiting = new Set<Octets>()
    const first = await this.#look(pending, flow => {
      if (waiting.size < WAITING_MAX) waiting.add(entryOf(flow))
      return false
    })
    if (waiting.size === 0) return first
    await pause(this.#options.clock, ANSWER_MS, this.#stopping.signal)
    const second = await this.#look(pending, flow => waiting.has(entryOf(flow)))
    return {
      busyMs: (first.busyMs ?? 0) + (second.busyMs ?? 0),
      isWhole: first.isWhole && second.isWhole && waiting.size < WAITING_MAX,
    }
  }

  async #look(pending: Pending, isChosen: (flow: Flow) => boolean): Promise<Removal> {
    const { clock, pass, report } = this.#options
    const view = this.#view
    if (view === undefined) return { busyMs: undefined, isWhole: true }
    const isWhole = !isLagging(view)
    const looks = await finishInSlices(looksAt(view, pending, { look: lookAtHalfOpen }), slicingOf(clock))
    if (looks.size === 0) return { busyMs: undefined, isWhole }
    let busyMs = 0
    for (const result of await pass.run({ looks, view, phase: 'half-open', isChosen })) {
      busyMs += result.durationMs
      report(result)
    }
    return { busyMs, isWhole }
  }

  #restore(pending: Pending): void {
    const later = this.#pending
    this.#pending = pending
    for (const [key, versions] of later) remember(pending, key, versions)
  }
}

interface Removal {
  /** Undefined when no check of the kernel was necessary. */
  readonly busyMs: number | undefined
  /** False: some attempts are for a later pass. */
  readonly isWhole: boolean
}

/** Identifies an entry: a later one with the same tuple has another id. */
function entryOf({ tuple, id }: Flow): Octets {
  return `${id} ${tuple}`
}
