import { type Clock, finishInSlices, Pacer, pause, restMs, slicingOf } from '../base/clock.ts'
import type { Octets } from '../base/octets.ts'
import type { Flow } from '../kernel/conntrack/flow.ts'
import type { ServiceKey } from '../model/service.ts'
import { type FamilyResult, type FlowPass, Stopped } from './pass.ts'
import {
  hasOtherTcpEndpoints,
  isLagging,
  lookAtHalfOpen,
  looksAt,
  type Pending,
  remember,
  type Version,
  type View,
} from './ports.ts'

interface HalfOpenOptions {
  readonly clock: Clock
  readonly pass: FlowPass
  readonly report: (result: FamilyResult) => void
  /** Called with what a pass threw; has the pacer try again. */
  readonly failed: (thrown: unknown, pacer: Pacer) => void
}

/** Most living endpoints have answered by then the SYNs of before the commit. */
const SETTLE_MS = 200
/** An endpoint that lives answers within it: the first retransmission timeout of TCP (RFC 6298, section 2.1). */
const ANSWER_MS = 1_000
/** Maximum number of attempts that one pass waits for, some 10 MB; the next pass takes the others. */
const WAITING_MAX = 65_536
/** A client gives up after it (tcp_syn_retries = 6): versions from before a longer failure are not kept. */
const TRIES_MS = 127_000
/** Minimum time between two passes, and the largest share of the time that they take. */
const DISTANCE_MS = 5_000
const SHARE = 0.01

/**
 * Removes connection attempts that go to a TCP endpoint that is gone, so that the client's next SYN is balanced anew.
 * An attempt is deleted when two reads, ANSWER_MS apart, show the same entry without an answer: the kernel cannot compare
 * the status within a deletion, and an answer between read and deletion would cost a connection. What it has not seen,
 * such as removals before it began, times out in the kernel (nf_conntrack_tcp_timeout_syn_sent).
 */
export class HalfOpenChecks {
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

  /** What the kernel was just brought to, after all that changed was noted. */
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
    await pause(clock, SETTLE_MS, this.#stopping.signal)
    if (this.#pacer.isStopped) return
    try {
      const { busyMs, isWhole } = await this.#remove(pending)
      if (busyMs !== undefined) this.#pacer.rest(Math.max(DISTANCE_MS, restMs(busyMs, SHARE)))
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

  async #remove(pending: Pending): Promise<Removal> {
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
    const looks = await finishInSlices(looksAt(view, pending, lookAtHalfOpen), slicingOf(clock))
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
  /** Undefined when there was nothing to ask the kernel. */
  readonly busyMs: number | undefined
  /** False: some attempts are for a later pass. */
  readonly isWhole: boolean
}

/** Identifies an entry: a later one with the same tuple has another id. */
function entryOf({ tuple, id }: Flow): Octets {
  return `${id} ${tuple}`
}
