import { createLog } from '../../../src/base/log.ts'
import type { ProverOptions } from '../../../src/daemon/optional-parts.ts'
import { Prover } from '../../../src/proof/prover.ts'
import type { ReconcilerEvent } from '../../../src/reconcile/pass.ts'
import type { EventFact } from '../../../src/telemetry/event.ts'
import { HealthTracker } from '../../../src/telemetry/health.ts'
import { FakeClock } from '../../support/fake-clock.ts'
import { createMetrics } from '../../support/metrics.ts'
import { serviceOf, sliceOf } from '../../support/objects.ts'

export const service = (number: number, ...ips: readonly string[]) => [
  serviceOf(`s${number}`, `172.30.0.${number}`),
  sliceOf(`s${number}`, ips),
]

/** A Prover beside a reconciler over a kernel in memory. */
export abstract class ProverWorld {
  readonly clock = new FakeClock()
  readonly metrics = createMetrics({ proofAgeS: () => this.prover?.ageS })
  readonly health: HealthTracker
  readonly facts: EventFact[] = []
  readonly lines: string[] = []
  abstract readonly rig: { readonly events: readonly ReconcilerEvent[]; close(): Promise<void> }
  abstract readonly prover: Prover
  #reported = 0

  constructor(syncPeriodMs: number) {
    this.health = new HealthTracker({ clock: this.clock, wallMs: () => 0, syncPeriodMs })
  }

  protected makeProver(options: Pick<ProverOptions, 'sysctls' | 'sockets' | 'activeMode'>): Prover {
    const destination = { write: (line: string) => void this.lines.push(line) }
    return new Prover({
      ...options,
      clock: this.clock,
      log: createLog({ format: 'text', verbosity: 2, destination }),
      nodeName: 'test-node',
      tell: fact => void this.facts.push(fact),
      metrics: this.metrics,
      health: this.health,
    })
  }

  /** Time goes by, and the Prover hears what the reconciler reports. */
  async wait(ms: number): Promise<void> {
    for (let leftMs = ms; leftMs > 0; leftMs -= 50) {
      await this.clock.advance(Math.min(50, leftMs))
      for (const event of this.rig.events.slice(this.#reported)) this.prover.report(event)
      this.#reported = this.rig.events.length
    }
  }

  async number(name: string): Promise<number> {
    const text = await this.metrics.text()
    return Number(new RegExp(`^kprobe_proof_${name} (.*)$`, 'm').exec(text)?.[1])
  }

  proofs(): Promise<number> {
    return this.number('duration_seconds_count')
  }

  async close(): Promise<void> {
    const stopped = this.prover.stop()
    await this.clock.advance(0)
    await stopped
    await this.rig.close()
  }
}
