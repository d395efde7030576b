import { finishInSlices, type Slicing } from '../base/clock.ts'
import type { Family } from '../base/ip.ts'
import type { FrontendTable } from '../model/frontend.ts'
import type { CommitOptions, Dataplane, Generation, Plan, PlanLine, Receipt } from './dataplane.ts'
import { type FailedFamily, isFamily, type Quarantine } from './quarantine.ts'

/** The reconciler reports these values for logs, metrics and health; they never call back into a source. */
export type ReconcilerEvent =
  | {
      readonly kind: 'committed'
      readonly reason: PassReason
      readonly plan: Plan<unknown>
      readonly receipt: Receipt
    }
  /** The kernel holds the state that the Snapshot of this number requires. */
  | {
      readonly kind: 'synced'
      readonly number: number
      readonly reason: PassReason
      /** Time from the start of the first pass that this one finished, pauses between commits included. */
      readonly durationMs: number
      /** The whole kernel state was read. */
      readonly readWhole: boolean
    }
  /** The kernel differed from what we had left there, and holds it again. */
  | { readonly kind: 'repaired'; readonly changes: number; readonly objects: readonly string[] }
  /** Another program committed; `process` is known only while a subscription is open. */
  | {
      readonly kind: 'foreign-commit'
      readonly generation: Generation
      readonly process: string | undefined
      readonly damage: boolean
    }
  | { readonly kind: 'stale'; readonly attempt: number }
  | {
      readonly kind: 'quarantined'
      readonly service: string
      readonly error: Error
      readonly retryMs: number
    }
  | { readonly kind: 'released'; readonly service: string }
  /** The kernel rejects objects that all Services of a family share: it keeps what it holds of that family. */
  | (FailedFamily & {
      readonly kind: 'family-failed'
      readonly retryMs: number
      /** Failures in succession. */
      readonly failures: number
    })
  | { readonly kind: 'family-restored'; readonly family: Family }
  /** A pass failed as a whole and is tried again. */
  | { readonly kind: 'failed'; readonly error: Error; readonly retryMs: number }

export type PassReason = 'start' | 'change' | 'drift' | 'period' | 'retry'

interface PassOptions<State, P extends Plan<State>> {
  readonly plane: Dataplane<State, P>
  readonly slicing: Slicing
  readonly nowMs: () => number
  readonly quarantine: Quarantine
  readonly report: (event: ReconcilerEvent) => void
  /** Called after each read or write of the kernel with the generation then current; see DriftDetector.expect. */
  readonly atGeneration: (generation: Generation, foreign: boolean) => void
  /** Called after each read with its duration, comparing included. */
  readonly noteRead: (durationMs: number) => void
  /** Resolves when another commit is allowed. */
  readonly pace: () => Promise<void>
  /**
   * Called before the first commit, with the kernel's state and the wanted one. If it resolves with true, the wanted
   * objects were read again from their source, and the commit is not made.
   */
  readonly doubts?: ((held: State, wanted: State) => Promise<boolean>) | undefined
}

interface PassResult {
  /** False when another pass must follow. */
  readonly complete: boolean
  /** The kernel serves what was wanted; a pass that must follow removes what packets no longer reach. */
  readonly serves?: true
  readonly readWhole: boolean
}

interface Planned<State, P> {
  readonly plan: P
  readonly from: State
  readonly wanted: State
  /** It was made of an observed state. */
  readonly observed: boolean
}

interface Goal<State> extends Pick<PassOptions<State, Plan<State>>, 'doubts'> {
  readonly table: FrontendTable
  readonly reason: PassReason
  readonly without: ReadonlySet<string>
  /**
   * Tests whether our objects caused the rejection of a plan in this round; `observed` if it was made of an observed
   * state.
   */
  readonly isOurFault: (observed: boolean, round: number) => boolean
}

interface Outcome extends PassResult {
  /** Nothing is complete then. */
  readonly rejection?: Receipt
}

/** Tries before a commit goes out without naming the generation it was planned against. */
const STALE_TRIES = 5
const ROUNDS_MAX = 64

/**
 * One pass: render, diff, commit. The left side of the diff is what we know to be applied or, at start and after any
 * doubt, what the kernel is observed to hold: the same path either way.
 */
export class Pass<State, P extends Plan<State>> {
  readonly #options: PassOptions<State, P>
  /** The state of the kernel; undefined when it must be read. */
  #applied: State | undefined
  /** Lends its numbering to the next render. */
  #base: State | undefined
  #generation: Generation | undefined
  /** Invalidated since the last read began. */
  #doubted = false
  /** The last observed state may be wrong where others changed our objects meanwhile. */
  #unsettled = false
  /** The kernel has held what was wanted, so a difference found by a read is drift and not a first programming. */
  #programmed = false
  /** The state after the last commit, also when the kernel must be read; undefined where the outcome is not known. */
  #left: State | undefined

  constructor(options: PassOptions<State, P>) {
    this.#options = options
  }

  /** The newest state that was rendered, with the numbering that is in the kernel; undefined before the first. */
  get rendered(): State | undefined {
    return this.#base
  }

  /** The kernel may differ from the applied state: read it before the next commit, or again if one runs. */
  invalidate(): void {
    this.#applied = undefined
    this.#doubted = true
  }

  async run(table: FrontendTable, reason: PassReason): Promise<PassResult> {
    const { quarantine, nowMs } = this.#options
    if (quarantine.all.size === 0) return await this.#converge(table, reason, new Set())
    const startMs = nowMs()
    quarantine.reconsider(key => (isFamily(key) ? key : table.services.get(key)), startMs)
    const due = quarantine.due(startMs)
    const without = new Set(quarantine.without())
    for (const family of due.filter(isFamily)) {
      without.delete(family)
      // The numbering of a family that was not written is not that of the kernel.
      this.#applied = undefined
      this.#base = undefined
    }
    const result = await this.#converge(table, reason, without)
    // The turn of a family that failed again has moved on.
    this.#release(quarantine.due(startMs).filter(isFamily), without)
    const services = due.filter(key => !isFamily(key))
    if (services.length === 0) return result
    await this.#letIn(table, services, new Set(quarantine.without()))
    // What the last of these commits left for later is found by one more pass.
    return { ...result, complete: false }
  }

  /** Commits until the kernel holds `table` without these Services and those that it rejects, or throws. */
  async #converge(
    table: FrontendTable,
    reason: PassReason,
    without: ReadonlySet<string>,
  ): Promise<PassResult> {
    // A rejection may only mean that another program changed our tables: it counts once it answers a plan of an observed state.
    const isOurFault = (observed: boolean, round: number): boolean =>
      observed && (!this.#unsettled || round > STALE_TRIES)
    const { doubts } = this.#options
    const outcome = await this.#commit({ table, reason, without, isOurFault, doubts })
    const { rejection } = outcome
    return rejection === undefined ? outcome : await this.#exclude(table, reason, rejection, without)
  }

  /** Commits until the kernel holds `table` without these Services or rejects a plan, or throws. */
  async #commit({ table, reason, without, isOurFault, doubts }: Goal<State>): Promise<Outcome> {
    const { plane, pace, report } = this.#options
    let readWhole = false
    for (let round = 1; round <= ROUNDS_MAX; round++) {
      if (round > 1) await pace()
      const { plan, observed, from, wanted } = await this.#plan(table, without)
      readWhole ||= observed
      if (plan.empty) {
        this.#hold(plan.after)
        this.#programmed = true
        return { complete: true, readWhole }
      }
      if (observed && !this.#programmed && (await doubts?.(from, wanted)) === true) {
        // The next render takes its numbering from the kernel's state, because this plan was not committed.
        this.#base = undefined
        return { complete: false, readWhole }
      }
      const damage = observed ? await this.#damage(from, reason) : undefined
      const receipt = await plane.commit(plan, this.#guard(observed, round))
      if (receipt.outcome === 'committed') {
        // A pass that planned from the applied state commits a change, whatever has been requested meanwhile.
        const isChange = !observed || (isCheck(reason) && damage === undefined)
        this.#accept(plan, receipt, isChange ? 'change' : reason)
        if (damage !== undefined) report(damage)
        return { complete: plan.complete, serves: true, readWhole }
      }
      if (receipt.outcome === 'unknown' || receipt.partial === true) this.#left = undefined
      if (receipt.outcome === 'unknown') throw new CommitError('the outcome of a commit is unknown', receipt)
      if (receipt.outcome === 'stale') report({ kind: 'stale', attempt: round })
      const isRejected = receipt.outcome === 'refused' && isOurFault(observed, round)
      // The kernel need not be read for a rejection, and the next receipt no longer knows of commits before this one.
      if (isRejected && receipt.foreign) this.#options.atGeneration(receipt.generation, true)
      if (!isRejected || receipt.partial === true) this.#applied = undefined
      if (isRejected) return { complete: false, readWhole, rejection: receipt }
    }
    throw new Error(`the kernel's generation moved on before each of ${ROUNDS_MAX} commits`)
  }

  /** A plan of an observed state holds until the next commit; but a program that always commits must not stop us. */
  #guard(observed: boolean, round: number): CommitOptions {
    const generation = observed && !this.#unsettled && round <= STALE_TRIES ? this.#generation : undefined
    return generation === undefined ? {} : { generation }
  }

  async #plan(table: FrontendTable, without: ReadonlySet<string>): Promise<Planned<State, P>> {
    const { plane, slicing, nowMs, noteRead } = this.#options
    const startMs = nowMs()
    let from = this.#applied
    const observed = from === undefined
    if (from === undefined) {
      this.#doubted = false
      const observation = await plane.observe()
      from = observation.state
      this.#generation = observation.generation
      this.#unsettled = observation.unsettled === true
      this.#options.atGeneration(observation.generation, false)
    }
    const wanted = await finishInSlices(plane.render(table, { base: this.#base ?? from, without }), slicing)
    this.#base = wanted
    const plan = await finishInSlices(plane.diff(from, wanted), slicing)
    if (observed) noteRead(nowMs() - startMs)
    if (observed || !plan.rebuilds) return { plan, observed, from, wanted }
    this.#applied = undefined
    return await this.#plan(table, without)
  }

  #hold(state: State): void {
    this.#applied = this.#doubted ? undefined : state
    this.#left = state
  }

  /**
   * Gives what other programs changed in our objects since the last commit. A change that came in the meantime is part of
   * the plan, and no damage.
   */
  async #damage(found: State, reason: PassReason): Promise<ReconcilerEvent | undefined> {
    if (!this.#programmed || reason === 'change' || this.#left === undefined) return undefined
    const { plane, slicing } = this.#options
    const plan = await finishInSlices(plane.diff(found, this.#left), slicing)
    if (plan.empty) return undefined
    return { kind: 'repaired', changes: plan.changes, objects: firstObjects(plan.describe()) }
  }

  #accept(plan: P, receipt: Receipt, reason: PassReason): void {
    const { report, atGeneration } = this.#options
    this.#hold(plan.after)
    this.#generation = receipt.generation
    atGeneration(receipt.generation, receipt.foreign)
    report({ kind: 'committed', reason, plan, receipt })
    this.#programmed = true
  }

  /** The kernel refused: finds whose objects it does not want, quarantines them and commits everything else. */
  async #exclude(
    table: FrontendTable,
    reason: PassReason,
    receipt: Receipt,
    without: ReadonlySet<string>,
  ): Promise<PassResult> {
    const failed = failedFamily(receipt)
    if (failed !== undefined && ![...without].some(isFamily)) {
      this.#refuse(table, failed.family, failed.error)
      await this.#options.pace()
      return await this.#converge(table, reason, new Set([...without, failed.family]))
    }
    const named = new Map<string, Error>()
    const suspects = new Map<string, Error>()
    for (const { services, error } of receipt.refusals) {
      const target = services.length === 1 ? named : suspects
      for (const service of services) target.set(service, error)
    }
    const first = receipt.refusals[0]
    if (named.size + suspects.size === 0 || failed !== undefined)
      throw new CommitError(first?.error.message ?? 'the kernel rejected a commit without an error', receipt)
    for (const [service, error] of named) this.#refuse(table, service, error)
    const unclear = [...suspects.keys()].filter(service => !named.has(service))
    const held = new Set([...without, ...named.keys(), ...unclear])
    await this.#options.pace()
    const result = await this.#converge(table, reason, held)
    if (unclear.length > 0) await this.#isolate(table, unclear, held)
    return result.complete && unclear.length === 0 ? result : { ...result, complete: false }
  }

  /**
   * Lets held Services, of which at least one was refused, in by halves; those that are refused alone are quarantined.
   * If the first half is accepted, the second is known to be rejected and is split without a try.
   */
  async #isolate(table: FrontendTable, suspects: readonly string[], held: Set<string>): Promise<void> {
    const middle = suspects.length >> 1
    const first = suspects.slice(0, middle)
    const second = suspects.slice(middle)
    const isFine = first.length > 0 && (await this.#letIn(table, first, held))
    if (isFine && second.length > 1) await this.#isolate(table, second, held)
    else await this.#letIn(table, second, held)
  }

  /** Commits with these Services let in. Gives true if the kernel accepts all of them. */
  async #letIn(table: FrontendTable, services: readonly string[], held: Set<string>): Promise<boolean> {
    const without = new Set(held)
    for (const service of services) without.delete(service)
    await this.#options.pace()
    // The applied state was committed a moment ago: a rejection of its plan counts.
    const isOurFault = (observed: boolean, round: number): boolean => !observed || round > 1
    const { rejection } = await this.#commit({ table, reason: 'retry', without, isOurFault })
    if (rejection === undefined) this.#release(services, held)
    else if (services.length > 1) await this.#isolate(table, services, held)
    else {
      const error = rejection.refusals[0]?.error ?? new Error('refused')
      for (const service of services) this.#refuse(table, service, error)
    }
    return rejection === undefined
  }

  #release(services: readonly string[], held: Set<string>): void {
    const { quarantine, report } = this.#options
    for (const service of services) {
      held.delete(service)
      if (!quarantine.has(service)) continue
      quarantine.release(service)
      report(isFamily(service) ? { kind: 'family-restored', family: service } : { kind: 'released', service })
    }
  }

  #refuse(table: FrontendTable, service: string, error: Error): void {
    const { quarantine, nowMs, report } = this.#options
    const now = nowMs()
    const subject = isFamily(service) ? service : table.services.get(service)
    const entry = quarantine.refuse({ service, subject, error }, now)
    const facts = { error, retryMs: entry.retryAtMs - now }
    if (!isFamily(service)) report({ kind: 'quarantined', service, ...facts })
    else report({ kind: 'family-failed', family: service, failures: entry.failures, ...facts })
  }
}

/** Tests whether a pass for this reason searches for damage. */
function isCheck(reason: PassReason): boolean {
  return reason === 'drift' || reason === 'period'
}

/**
 * Finds the family of which the kernel rejects objects that its Services share, if it rejects no other shared objects. What
 * it says of single Services follows from that.
 */
function failedFamily({ refusals }: Receipt): FailedFamily | undefined {
  const [first, ...others] = refusals.filter(({ services }) => services.length === 0)
  if (first?.family === undefined || others.some(({ family }) => family !== first.family)) return undefined
  return { family: first.family, error: first.error }
}

function firstObjects(lines: Iterable<PlanLine>): string[] {
  const objects: string[] = []
  for (const { verb, object } of lines) {
    // A log line names ten.
    if (objects.length === 10) break
    objects.push(`${verb} ${object}`)
  }
  return objects
}

/** A commit that did not happen, or whose outcome is unknown. */
class CommitError extends Error {
  override readonly name = 'CommitError'
  readonly receipt: Receipt

  constructor(message: string, receipt: Receipt) {
    super(message, { cause: receipt.refusals[0]?.error })
    this.receipt = receipt
  }
}
