import { onTestFinished } from 'vitest'
import { KernelReport } from '../../src/daemon/cluster.ts'
import { Intake } from '../../src/daemon/intake.ts'
import { EMPTY_SNAPSHOT, type Snapshot } from '../../src/model/snapshot.ts'
import type { RelayClient } from '../../src/relay/client.ts'
import type { MemoryRelay, RelayWorld } from './relay.ts'

/** Time that a commit takes. */
const COMMIT_MS = 7
const RETRY_MS = 1_000

/** A node of a RelayWorld with a kernel, which may refuse, and reports what that holds. */
export class ReportingNode {
  readonly client: RelayClient
  readonly name: string
  /** What the kernel holds. */
  kernel: Snapshot = EMPTY_SNAPSHOT
  /** The kernel takes commits. */
  accepts = true
  quarantined: readonly { readonly service: string; readonly error: Error }[] = []
  readonly #clock: RelayWorld['clock']
  readonly #intake: Intake
  readonly #report: KernelReport
  readonly #follow: () => Promise<void>
  #wanted = EMPTY_SNAPSHOT
  #isDue = false
  #isGone = false

  constructor(world: RelayWorld, name: string, relays: readonly MemoryRelay[] = world.relays) {
    this.name = name
    this.#clock = world.clock
    this.client = world.client(name, relays)
    this.#intake = new Intake({
      handlers: { refusals: () => undefined, problem: () => undefined },
    })
    this.#report = new KernelReport({
      intake: this.#intake,
      quarantined: () => this.quarantined,
      proof: () => undefined,
      report: state => this.client.report(state),
    })
    this.#intake.deliverTo({
      offer: snapshot => {
        this.#wanted = snapshot
        this.#commitLater(COMMIT_MS)
      },
    })
    this.#follow = async () =>
      await this.#intake.follow(
        world.source(this.client, name, { reached: revisions => this.#report.reached(revisions) }),
      )
  }

  /** The node ends with the test. */
  async start(): Promise<this> {
    onTestFinished(() => this.stop())
    await this.#follow()
    return this
  }

  /** The node is gone, with its connections. */
  async stop(): Promise<void> {
    if (this.#isGone) return
    this.#isGone = true
    await this.client.close()
    await this.#intake.stop()
  }

  #commitLater(ms: number): void {
    if (this.#isDue) return
    this.#isDue = true
    this.#clock.after(ms, () => {
      this.#isDue = false
      if (!this.#isGone) this.#commit()
    })
  }

  #commit(): void {
    if (!this.accepts) {
      this.#report.take({ kind: 'failed', error: new Error('nf_tables: EPERM'), retryMs: RETRY_MS })
      this.#commitLater(RETRY_MS)
      return
    }
    this.kernel = this.#wanted
    const { number } = this.kernel
    this.#report.take({ kind: 'synced', number, reason: 'change', durationMs: COMMIT_MS, readWhole: false })
  }
}
