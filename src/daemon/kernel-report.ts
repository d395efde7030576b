import { buildInfo } from '../base/build-info.ts'
import { errorText } from '../base/errors.ts'
import type { Snapshot } from '../model/snapshot.ts'
import type { QuarantineEntry, ReconcilerEvent } from '../reconcile/pass.ts'
import type { KernelState, LocatedRefusal, Revisions } from '../source/source.ts'

interface KernelReportOptions {
  readonly intake: {
    readonly complete: boolean
    readonly snapshot: Snapshot
    readonly refused: readonly LocatedRefusal[]
    isStale(snapshot: Snapshot): boolean
  }
  /** Services that the kernel has rejected. */
  readonly quarantined: () => readonly Pick<QuarantineEntry, 'service' | 'error'>[]
  readonly proof: () => KernelState['proof']
  readonly report: (state: KernelState) => void
}

/** Revisions that are in every Snapshot from this number on. */
interface Reached {
  readonly revisions: Revisions
  readonly number: number
}

/** Snapshots that the kernel does not hold yet; of more, the newer ones count as one. */
const REACHED_MAX = 64
const LACKING_MAX = 8

/** Follows which revisions the kernel holds: those that were in a Snapshot before the sync that ended with it. */
export class KernelReport {
  readonly #options: KernelReportOptions
  #reached: readonly Reached[] = []
  #synced = -1
  #held: Revisions | undefined
  #failure = ''

  constructor(options: KernelReportOptions) {
    this.#options = options
  }

  /** All changes up to these revisions are in the newest Snapshot. */
  reached(revisions: Revisions): void {
    const { intake } = this.#options
    const { number } = intake.snapshot
    // Objects of a saved state are of no revision, and those of a source that is not complete are in no Snapshot.
    if (!intake.complete || intake.isStale(intake.snapshot)) return
    const before = this.#reached.filter(its => its.number < number)
    this.#reached = [...before.slice(0, REACHED_MAX - 1), { revisions, number }]
    if (this.#advance()) this.#report()
  }

  take(event: ReconcilerEvent): void {
    if (event.kind === 'synced') {
      this.#synced = event.number
      this.#failure = ''
      this.#advance()
    } else if (event.kind === 'failed') this.#failure = errorText(event.error)
    else if (event.kind !== 'quarantined' && event.kind !== 'released') return
    this.#report()
  }

  #advance(): boolean {
    const held = this.#reached.findLast(({ number }) => number <= this.#synced)
    if (held === undefined) return false
    this.#held = held.revisions
    this.#reached = this.#reached.filter(({ number }) => number > this.#synced)
    return true
  }

  #report(): void {
    const { intake, proof, report } = this.#options
    const quarantined = this.#options.quarantined()
    const refused = intake.refused
    report({
      held: this.#held,
      failure: this.#failure,
      lacking: [
        ...quarantined
          .slice(0, LACKING_MAX)
          .map(({ service, error }) => ({ service, reason: errorText(error) })),
        ...refused.slice(0, LACKING_MAX).map(({ refusal: { service, object, field, reason } }) => ({
          service: service ?? object.replace(/^Service /, ''),
          reason: `${field}: ${reason}`,
        })),
      ].slice(0, LACKING_MAX),
      lackingCount: quarantined.length + refused.length,
      proof: proof(),
      version: buildInfo().version,
    })
  }
}
