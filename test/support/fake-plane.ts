import type { Cancel, Clock, Steps } from '../../src/base/clock.ts'
import type { FrontendTable } from '../../src/model/frontend.ts'
import {
  type CommitOptions,
  type Dataplane,
  type Generation,
  type GenerationWatch,
  generationOf,
  guardOf,
  type Observation,
  type Plan,
  type PlanLine,
  type Receipt,
  type RenderOptions,
  type WriterCommit,
} from '../../src/reconcile/dataplane.ts'

/** Service key to whatever it stands for. */
type FakeState = ReadonlyMap<string, string>

interface FakePlan extends Plan<FakeState> {
  readonly to: FakeState
  readonly lines: readonly PlanLine[]
}

/** A data plane over a map: transactional, with a generation, and as refusing as the test wants it to be. */
export class FakePlane implements Dataplane<FakeState, FakePlan> {
  readonly name: string = 'nftables'
  readonly empty: FakeState = new Map()
  kernel: FakeState = new Map()
  generationNow = 1
  /** Services that the kernel refuses. */
  readonly poisoned = new Set<string>()
  /** Whether a refusal names the culprit or all Services of the plan. */
  namesCulprit = true
  /** Outcomes to give instead of committing, first one first. */
  readonly outcomes: Receipt['outcome'][] = []
  /** What is not refused goes in all the same, and of what is refused a part. */
  partial = false
  /** Removals wait for a second commit. */
  twoCommits = false
  /** Plans make things anew in which packets left state. */
  rebuilds = false
  readonly commits: FakePlan[] = []
  /** Generations that commits were to be guarded by. */
  readonly guards: (number | undefined)[] = []
  /** Somebody else is at work all the time. */
  unsettled = false
  beforeObserve: (() => void) | undefined
  /** Runs when a commit is done, before whoever asked for it knows. */
  afterCommit: (() => void) | undefined
  /** How long the kernel keeps the answer to a commit back, and how long it takes to read it, by `sleep`. */
  commitMs = 0
  observeMs = 0
  sleep: (ms: number) => Promise<void> = () => Promise.resolve()
  /** With a clock, the plane watches its generation itself. */
  watchedBy: Clock | undefined
  /** Reads of the generation from outside. */
  reads = 0
  attempts = 0
  observations = 0
  writers: ((commit: WriterCommit) => void) | undefined
  #seen = 1

  generation(): Generation {
    this.reads++
    this.#seen = this.generationNow
    return generationOf(this.generationNow)
  }

  *render(table: FrontendTable, { without }: RenderOptions<FakeState>): Steps<FakeState> {
    const state = new Map<string, string>()
    for (const [key, value] of table.services.entries())
      if (!without.has(key)) state.set(key, value.ports.map(port => port.displayName).join())
    yield
    return state
  }

  *diff(from: FakeState, to: FakeState): Steps<FakePlan> {
    const lines: PlanLine[] = []
    for (const [key, value] of to)
      if (from.get(key) !== value)
        lines.push({ verb: from.has(key) ? 'change' : 'add', object: key, service: key })
    const removed = [...from.keys()].filter(key => !to.has(key))
    const deferred = this.twoCommits && lines.length > 0 && removed.length > 0
    if (!deferred) for (const key of removed) lines.push({ verb: 'remove', object: key, service: key })
    const after = deferred ? new Map([...from, ...to]) : to
    yield
    return {
      empty: lines.length === 0,
      changes: lines.length,
      after,
      complete: !deferred,
      rebuilds: this.rebuilds,
      to: after,
      lines,
      describe: () => lines,
    }
  }

  async observe(): Promise<Observation<FakeState>> {
    this.observations++
    this.beforeObserve?.()
    if (this.observeMs > 0) await this.sleep(this.observeMs)
    this.#seen = this.generationNow
    const { kernel: state, unsettled } = this
    return { state, generation: generationOf(this.generationNow), unsettled }
  }

  async commit(plan: FakePlan, options: CommitOptions): Promise<Receipt> {
    this.attempts++
    this.guards.push(guardOf(options).generation)
    const outcome = this.#outcome(plan, options)
    const foreign = this.generationNow !== this.#seen
    if (outcome === 'committed') {
      this.kernel = plan.to
      this.generationNow++
      this.commits.push(plan)
    }
    const isPartial = this.partial && (outcome === 'refused' || outcome === 'stale')
    if (isPartial) this.#commitRest(plan)
    this.#seen = this.generationNow
    const refusals = outcome === 'refused' ? this.#refusals(plan) : []
    const receipt: Receipt = {
      outcome,
      generation: generationOf(this.generationNow),
      foreign,
      refusals,
      partial: isPartial,
      bytes: plan.changes,
      messages: plan.changes,
      durationMs: 0,
    }
    if (this.commitMs > 0) await this.sleep(this.commitMs)
    this.afterCommit?.()
    return receipt
  }

  watchGeneration(everyMs: number, changed: () => void): GenerationWatch | undefined {
    const clock = this.watchedBy
    if (clock === undefined) return undefined
    let last: number | undefined
    let cancel: Cancel
    const tick = (): void => {
      cancel = clock.after(everyMs, tick)
      if (this.generationNow === last) return
      last = this.generationNow
      changed()
    }
    cancel = clock.after(everyMs, tick)
    return { expect: () => undefined, stop: () => cancel() }
  }

  watchWriters(report: (commit: WriterCommit) => void): () => void {
    this.writers = report
    return () => {
      this.writers = undefined
    }
  }

  cleanup(): Promise<void> {
    this.kernel = new Map()
    return Promise.resolve()
  }

  /** Somebody else commits. */
  tamper(kernel: FakeState): void {
    this.kernel = kernel
    this.generationNow++
  }

  #commitRest(plan: FakePlan): void {
    const culprits = new Set(this.#culprits(plan))
    const parts = [...culprits].map(key => [`part of ${key}`, '1'] as const)
    this.kernel = new Map([...[...plan.to].filter(([key]) => !culprits.has(key)), ...parts])
  }

  #outcome(plan: FakePlan, options: CommitOptions): Receipt['outcome'] {
    const scripted = this.outcomes.shift()
    if (scripted !== undefined) return scripted
    const { generation = this.generationNow } = guardOf(options)
    if (generation !== this.generationNow) return 'stale'
    return this.#culprits(plan).length > 0 ? 'refused' : 'committed'
  }

  #culprits(plan: FakePlan): string[] {
    return plan.lines.flatMap(({ verb, service }) =>
      verb !== 'remove' && service !== undefined && this.poisoned.has(service) ? [service] : [],
    )
  }

  #refusals(plan: FakePlan): Receipt['refusals'] {
    const culprits = this.#culprits(plan)
    const error = new Error('EINVAL (Invalid argument)')
    if (this.namesCulprit) return culprits.map(service => ({ services: [service], error }))
    const all = plan.lines.flatMap(({ service }) => (service === undefined ? [] : [service]))
    return [{ services: all, error }]
  }
}
