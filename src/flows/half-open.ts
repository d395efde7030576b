import { type Clock, finishInSlices, Pacer, pause, restMs, type Steps, slicingOf } from '../base/clock.ts'
import type { ServiceKey } from '../model/service.ts'
import { type FamilyResult, type FlowPass, Stopped } from './pass.ts'
import {
  hasOtherTcpEndpoints,
  type Looks,
  lookAtHalfOpen,
  type Pending,
  remember,
  type Version,
  type View,
  versionOf,
} from './ports.ts'
import { nodeAddresses } from './stale.ts'

interface HalfOpenOptions {
  readonly clock: Clock
  readonly pass: FlowPass
  readonly report: (result: FamilyResult) => void
  /** Called with what a pass threw; has the pacer try again. */
  readonly failed: (thrown: unknown, pacer: Pacer) => void
}

/** A living endpoint has answered by then the SYNs of before the commit; a client repeats its first one after 1 s. */
const SETTLE_MS = 200
/** Minimum time between two passes, and the largest share of the time that they take. */
const DISTANCE_MS = 5_000
const SHARE = 0.01

/**
 * Removes connection attempts that go to a TCP endpoint that is gone, so that the client's next SYN is balanced anew.
 * Connections that an endpoint has answered are never touched. What it has not seen, such as removals before it began,
 * times out in the kernel (nf_conntrack_tcp_timeout_syn_sent).
 */
export class HalfOpenChecks {
  readonly #options: HalfOpenOptions
  readonly #pacer: Pacer
  readonly #stopping = new AbortController()
  #view: View | undefined
  #pending: Pending = new Map()

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
    const view = this.#view
    if (view === undefined || this.#pacer.isStopped) return
    const startMs = clock.nowMs()
    try {
      if (await this.#look(view, pending))
        this.#pacer.rest(Math.max(DISTANCE_MS, restMs(clock.nowMs() - startMs, SHARE)))
      this.#pacer.succeeded()
      // The kernel's rules lag behind: connections may still begin there. The next sync leads to another pass.
      if (view.table.number !== view.snapshot.number) this.#restore(pending)
    } catch (thrown) {
      this.#restore(pending)
      if (!(thrown instanceof Stopped)) failed(thrown, this.#pacer)
    }
  }

  /** Returns whether there was anything to ask the kernel. */
  async #look(view: View, pending: Pending): Promise<boolean> {
    const { clock, pass, report } = this.#options
    const looks = await finishInSlices(looksAt(view, pending), slicingOf(clock))
    if (looks.size === 0) return false
    for (const result of await pass.run({ looks, node: nodeAddresses(view), phase: 'half-open' }))
      report(result)
    return true
  }

  #restore(pending: Pending): void {
    const later = this.#pending
    this.#pending = pending
    for (const [key, versions] of later) remember(pending, key, versions)
  }
}

function* looksAt(view: View, pending: Pending): Steps<Looks> {
  const looks: Looks = new Map()
  for (const [key, former] of pending) {
    const look = yield* lookAtHalfOpen(former, versionOf(view, key))
    if (look !== undefined) looks.set(key, look)
    yield
  }
  return looks
}
